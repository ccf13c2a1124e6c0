"""What is known about the compiler, for a cache folder of a test that is not about finding it out."""

import shutil
from pathlib import Path

from foregrad.backends import toolchain


def lend_toolchain(cache: Path) -> Path:
    """Put the answers of the compiler into a new cache folder, and the part that all libraries share: the folder of the
    toolchain there. Precompiled headers stay where they are; the answers name them."""
    known = toolchain.prepare()
    known.interface()
    folder = cache / "toolchain" / known.folder.name
    folder.mkdir(parents=True, mode=0o700)
    shutil.copy(known.file, folder.with_suffix(".json"))
    shutil.copy(known.folder / "interface.o", folder)
    return folder
