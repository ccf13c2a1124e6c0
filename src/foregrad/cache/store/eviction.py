"""Eviction: keep a folder of entries within its size limit.

What was used longest ago goes first. Nobody is asked: who has opened a file keeps it to the end, and who comes later
finds nothing and builds anew. Other processes may write, read and sweep at the same time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foregrad.cache.store.layer import is_key

#: A full folder is emptied a bit further than its limit, so that not every write has to sweep.
_LOW_WATER = 0.9

#: Temporary files and leases this old belong to nobody: writers finish, and owners renew, within seconds.
_STRAY_SECONDS = 3600.0

_SHARD = re.compile(r"[0-9a-f]{2}")


@dataclass(frozen=True)
class ShardFile:
    """A file of a shard."""

    path: Path
    size: int
    used_ns: int


@dataclass(frozen=True)
class Swept:
    """What a sweep removed, and what it left."""

    evicted: int
    evicted_bytes: int
    strays: int
    kept: int
    kept_bytes: int


def sweep(root: Path, max_bytes: int, spare: Path | None = None) -> Swept:
    """Evict entries of a versioned folder until it is within its limit; `spare` stays. Remove old strays."""
    files = sorted(_files(root), key=lambda file: file.used_ns)
    strays = sum(_remove(file) for file in files if _is_stray(file))
    found = [file for file in files if _is_entry(file)]
    evicted = _evict(found, max_bytes, spare)
    size = sum(file.size for file in evicted)
    return Swept(len(evicted), size, strays, len(found) - len(evicted), sum(file.size for file in found) - size)


def sweep_files(folder: Path, max_bytes: int, spare: Path | None = None) -> None:
    """The same for a folder of files that are nothing but what is kept."""
    _evict(sorted(_files_in(folder), key=lambda file: file.used_ns), max_bytes, spare)


def _evict(files: list[ShardFile], max_bytes: int, spare: Path | None) -> list[ShardFile]:
    """Remove the first of these until the rest is within the limit."""
    total = sum(file.size for file in files)
    goal = max_bytes if total <= max_bytes else int(max_bytes * _LOW_WATER)
    evicted: list[ShardFile] = []
    for file in files:
        if total <= goal:
            break
        if file.path != spare and _remove(file):
            evicted.append(file)
            total -= file.size
    return evicted


def entry_files(root: Path) -> Iterator[ShardFile]:
    """The files that are entries; not whether they are good ones."""
    return filter(_is_entry, _files(root))


def _files(root: Path) -> Iterator[ShardFile]:
    for shard in _scan(root):
        if _SHARD.fullmatch(shard.name) and shard.is_dir(follow_symlinks=False):
            yield from _files_in(Path(shard.path))


def _files_in(folder: Path) -> Iterator[ShardFile]:
    for file in _scan(folder):
        try:
            found = file.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process has removed it
        yield ShardFile(Path(file.path), found.st_size, found.st_mtime_ns)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _is_entry(file: ShardFile) -> bool:
    return file.path.suffix == ".fg" and is_key(file.path.stem)


def _is_stray(file: ShardFile) -> bool:
    return file.path.suffix in (".tmp", ".lease") and time.time() - file.used_ns / 1e9 > _STRAY_SECONDS


def _remove(file: ShardFile) -> bool:
    """Remove a file, unless it was used, written anew or removed since it was found."""
    try:
        if file.path.lstat().st_mtime_ns != file.used_ns:
            return False
        file.path.unlink()
    except OSError:  # gone, or not ours to remove
        return False
    return True
