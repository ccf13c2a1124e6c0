"""What is known about the compiler, for a cache folder of a test that is not about finding it out."""

import shutil
from pathlib import Path

from foregrad.backends import toolchain


def lend_toolchain(cache: Path) -> None:
    """Put the answers of the compiler into a new cache folder, and the part that all libraries share. Precompiled
    headers stay where they are; the answers name them."""
    known = toolchain.prepare()
    interface = known.interface()
    for name in ("toolchain", "code-2"):
        (cache / name).mkdir(mode=0o700, parents=True)
    shutil.copy(known.file, cache / "toolchain")
    for file in (interface, *interface.parent.glob(f"interface-*-{known.name}")):
        shutil.copy(file, cache / "code-2")
