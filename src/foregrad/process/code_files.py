"""Code files: compiled code that outlives a process, as files, since loaders and compilers want a path.

    code-2/3f0c….so             a shared library, named for the digest of its contents
    code-2/3f0c….json           what is loaded with it
    code-2/library-1-7a1b…      the digests of what was built under this name

They are within the size limit of this user's cache. One that is gone or damaged is written or built again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from foregrad.process.atomic_write import Bytes, write_atomically
from foregrad.process.folders import build_folder, cache_folder, code_folder, programs_folder, touch

if TYPE_CHECKING:
    from foregrad.process.eviction import SizeLimit


def code_file(digest: str, files: Mapping[str, Bytes]) -> Path:
    """The path of some code, given by suffix, with what belongs beside it; the digest is that of the first."""
    paths = [_folder() / f"{digest}{suffix}" for suffix in files]
    for path, data in zip(paths, files.values(), strict=True):
        _write_once(path, data)
    return paths[0]


def built(name: str, build: Callable[[Path], Mapping[str, Path]]) -> Path:
    """The path of what was built under a name. If it is not there, `build` works in a folder of its own and says which
    files to keep, by suffix. Where two processes build at once, either's is good."""
    index = _folder() / name
    if (found := _intact(index)) is not None:
        return found
    scratch = build_folder() / "building"
    scratch.mkdir(exist_ok=True)
    with TemporaryDirectory(dir=scratch, prefix="building-") as folder:
        files = {suffix: file.read_bytes() for suffix, file in build(Path(folder)).items()}
    digests = {suffix: _digest(data) for suffix, data in files.items()}
    made = code_file(next(iter(digests.values())), files)
    write_atomically(index, [json.dumps(digests).encode()])
    return made


def count(path: Path) -> None:
    """Count a new file of code, and keep all of it and the entries within their limit."""
    if path.is_relative_to(cache_folder()):  # else it goes with the process
        _limit(programs_folder()).added(path.stat().st_size, path)


def _folder() -> Path:
    return code_folder("code-2")


def _intact(index: Path) -> Path | None:
    """The path of what a name stands for, if all of it is there as it was written. It counts as used now."""
    try:
        digests = json.loads(index.read_text())
        first = next(iter(digests.values()), None)
        paths = {index.with_name(f"{first}{suffix}"): digest for suffix, digest in digests.items()}
        if not paths or any(_digest(path.read_bytes()) != digest for path, digest in paths.items()):
            return None
    except (OSError, ValueError, AttributeError):
        return None
    for path in (index, *paths):
        touch(path)
    return next(iter(paths))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write_once(path: Path, data: Bytes) -> None:
    """Let a file hold this; one that is loaded already stays as it is."""
    if _holds(path, data):
        touch(path)
        return
    write_atomically(path, [data])
    count(path)


def _holds(path: Path, data: Bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:  # it is not there, or it cannot be read, which writing it anew mends
        return False


@cache
def _limit(programs: Path) -> SizeLimit:
    from foregrad.process.eviction import SizeLimit

    return SizeLimit(programs)
