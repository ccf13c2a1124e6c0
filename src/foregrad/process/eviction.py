"""Eviction: keep what lies in folders within a size limit.

What was used longest ago goes first. Nobody is asked: who has opened a file keeps it to the end, and who comes later
finds nothing and builds anew. Other processes may write, read and sweep at the same time.

Entries are opened once, and may go at any time. Code is found first and then loaded or compiled with, by its path, so
what was used within the last hour stays.
"""

from __future__ import annotations

import logging
import math
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from foregrad.process.folders import MAX_BYTES, VERSION, code_folders, programs_folder

log = logging.getLogger("foregrad")

#: A full folder is emptied a bit further than its limit, so that not every write has to sweep.
_LOW_WATER = 0.9

#: Temporary files and leases this old belong to nobody: writers finish, and owners renew, within seconds. Code that was
#: used this long ago has been loaded.
_OLD_SECONDS = 3600.0

#: Other processes write too: how long our idea of a folder's size is good enough.
_SIZE_IS_KNOWN_SECONDS = 300.0

_SHARD = re.compile(r"[0-9a-f]{2}")
_ENTRY = re.compile(r"[0-9a-f]{8,128}\.fg")

#: Files of a few bytes that others rely on: headers beside precompiled ones, and locks.
_STAY = (".h", ".lock")


@dataclass(frozen=True)
class KeptFile:
    """A file of a shard, or of a folder of code."""

    path: Path
    size: int
    used_ns: int
    is_code: bool

    @property
    def is_old(self) -> bool:
        return time.time() - self.used_ns / 1e9 > _OLD_SECONDS

    @property
    def is_stray(self) -> bool:
        return self.path.suffix in (".tmp", ".lease") and self.is_old

    @property
    def counts(self) -> bool:
        is_kept = self.path.suffix not in _STAY if self.is_code else _ENTRY.fullmatch(self.path.name) is not None
        return is_kept and not self.is_stray


@dataclass(frozen=True)
class Swept:
    """What a sweep removed, and what it left."""

    evicted: int
    evicted_bytes: int
    strays: int
    kept: int
    kept_bytes: int


@dataclass
class SizeLimit:
    """The limit of a folder of programs. This user's own shares it with all compiled code."""

    programs: Path
    max_bytes: int = MAX_BYTES
    version: int = VERSION
    _size: int = 0
    _size_asked: float = -math.inf

    def added(self, size: int, newest: Path) -> None:
        """Sweep where something new of this size makes that necessary, or may do so; `newest` stays."""
        is_known = time.monotonic() - self._size_asked < _SIZE_IS_KNOWN_SECONDS
        if is_known and self._size + size <= self.max_bytes:
            self._size += size  # roughly: threads may do this at the same time
        else:
            self.sweep(spare=newest)

    def sweep(self, max_bytes: int | None = None, spare: Path | None = None) -> Swept:
        """Evict until the limit, or the one given, is met; `spare` stays. Remove old strays."""
        entries, code = self.programs / f"v{self.version}", self._code()
        files = [*_in_shards(entries), *(file for folder in code for file in code_in(folder))]
        strays = sum(_remove(file) for file in files if file.is_stray)
        found = sorted((file for file in files if file.counts), key=lambda file: file.used_ns)
        evicted = _evict(found, self.max_bytes if max_bytes is None else max_bytes, spare)
        for folder in code:
            _remove_empty_folders(folder)
        size = sum(file.size for file in evicted)
        self._size, self._size_asked = sum(file.size for file in found) - size, time.monotonic()
        return Swept(len(evicted), size, strays, len(found) - len(evicted), self._size)

    def code_bytes(self) -> dict[str, int]:
        """The compiled code that counts, by folder."""
        found = {str(folder): sum(file.size for file in code_in(folder) if file.counts) for folder in self._code()}
        return {folder: size for folder, size in found.items() if size}

    def _code(self) -> tuple[Path, ...]:
        return code_folders() if self.programs == programs_folder() else ()


def entry_files(root: Path) -> Iterator[KeptFile]:
    """The files that are entries; not whether they are good ones."""
    return (file for file in _in_shards(root) if file.counts)


def code_in(folder: Path) -> Iterator[KeptFile]:
    """The files in a folder of code and below it. No link is followed."""
    for place, _, _ in os.walk(folder):
        yield from _files_in(Path(place), is_code=True)


def _in_shards(root: Path) -> Iterator[KeptFile]:
    for shard in _scan(root):
        if _SHARD.fullmatch(shard.name) and shard.is_dir(follow_symlinks=False):
            yield from _files_in(Path(shard.path), is_code=False)


def _files_in(folder: Path, *, is_code: bool) -> Iterator[KeptFile]:
    for file in _scan(folder):
        try:
            found = file.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # another process has removed it
        if not stat.S_ISDIR(found.st_mode):
            yield KeptFile(Path(file.path), found.st_size, found.st_mtime_ns, is_code)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _evict(files: list[KeptFile], max_bytes: int, spare: Path | None) -> list[KeptFile]:
    """Remove the first of these until the rest is within the limit."""
    total = sum(file.size for file in files)
    goal = max_bytes if total <= max_bytes else int(max_bytes * _LOW_WATER)
    evicted: list[KeptFile] = []
    for file in files:
        if total <= goal:
            break
        if file.path != spare and (file.is_old or not file.is_code) and _remove(file):
            evicted.append(file)
            total -= file.size
    return evicted


def _remove(file: KeptFile) -> bool:
    """Remove a file, unless it was used, written anew or removed since it was found."""
    try:
        if file.path.lstat().st_mtime_ns != file.used_ns:
            return False
        file.path.unlink()
    except OSError:  # gone, or not ours to remove
        return False
    return True


def _remove_empty_folders(folder: Path) -> None:
    """Those below a folder in which nothing has changed for a while."""
    for place, _, files in os.walk(folder, topdown=False):
        try:
            if not files and Path(place) != folder and time.time() - os.lstat(place).st_mtime > _OLD_SECONDS:
                os.rmdir(place)
        except OSError as error:
            log.debug("a folder stays: %s", error)
