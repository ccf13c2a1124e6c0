"""Code as files: the loader of shared libraries wants a path, so the code of an entry is written out, once.

The folder has the limit of a store: what was loaded longest ago goes first. A library that is loaded stays loaded.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from foregrad.cache.store.layer import MAX_BYTES
from foregrad.cache.store.private_files import check_private, touch
from foregrad.process.atomic_write import Bytes, write_atomically
from foregrad.process.folders import code_folder

_FOLDER = "code-1"


def code_file(name: str, read: Callable[[str], Bytes]) -> Path:
    """A file with the contents of a blob whose name ends in the digest of its contents."""
    folder = code_folder() / _FOLDER
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_private(folder)
    path = folder / f"{name.rpartition('/')[2]}.so"
    write_once(path, read(name))
    return path


def write_once(path: Path, data: Bytes) -> None:
    """Let a file hold this; others see all of it or nothing, and one that is loaded already stays as it is."""
    if _holds(path, data):
        touch(path)
        return
    from foregrad.cache.store.eviction import sweep_files

    write_atomically(path, [data])
    sweep_files(path.parent, MAX_BYTES, spare=path)


def _holds(path: Path, data: Bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:  # it is not there, or it cannot be read, which writing it anew mends
        return False
