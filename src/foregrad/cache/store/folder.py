"""Folder: entries as files. A reader sees all of an entry or nothing of it, and no lock is needed for that.

    programs/v1/3f/3f0c….fg        an entry: its seal, then its content
    programs/v1/3f/3f0c….lease     somebody is working on it
    programs/v1/3f/.3f0c….tmp      being written, or left behind by a writer that was killed
    programs/v1/counts/hit         as many bytes as there were hits: to count one more is to append a byte

A folder is private to its user. With a secret it may be shared: what others have put there counts if it is signed.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from foregrad.cache.format.header import PRELUDE_BYTES, stated_length
from foregrad.cache.store.layer import (
    NOT_THERE,
    Hit,
    LeaseHolder,
    ListedEntry,
    Miss,
    check_key,
    too_large,
)
from foregrad.cache.store.private_files import check_private, make_folder, why_not_private
from foregrad.cache.store.seal import PLAIN, Seal
from foregrad.process.atomic_write import remove_if, write_atomically
from foregrad.process.folders import MAX_BYTES, VERSION, touch

if TYPE_CHECKING:
    from foregrad.cache.store.lease_file import LeaseFile
    from foregrad.process.eviction import SizeLimit, Swept

log = logging.getLogger("foregrad")


@dataclass
class Folder:
    """A folder of entries."""

    path: Path
    seal: Seal = PLAIN
    max_bytes: int = MAX_BYTES
    max_entry_bytes: int = 10**9
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.is_private:
            check_private(self.path)
            check_private(self.root)

    @property
    def name(self) -> str:
        return str(self.path) if self.is_private else f"file://{self.path}"

    @property
    def is_private(self) -> bool:
        return not self.seal.is_signed

    @property
    def root(self) -> Path:
        return self.path / f"v{self.version}"

    def file(self, key: str) -> Path:
        return self.root / check_key(key)[:2] / f"{key}.fg"

    def get(self, key: str) -> Hit | Miss:
        """The entry, which counts as used now. A damaged one is removed."""
        found = self.read(key)
        if isinstance(found, Hit):
            touch(self.file(key))
        elif found.kind == "damaged" and self.is_private:  # in a shared folder it may be good, for another secret
            self._remove_damaged(key, self.file(key))
        return found

    def read(self, key: str) -> Hit | Miss:
        return self._read(key, self.file(key))

    def peek(self, key: str, offset: int, length: int) -> bytes:
        opened = self._open(self.file(key))
        if isinstance(opened, Miss):
            raise OSError(opened.reason)
        with opened as file:
            return os.pread(file.fileno(), length, self.seal.size + offset)

    def put(self, key: str, data: bytes) -> None:
        path = self.file(key)
        size = self.seal.size + len(data)
        if size > min(self.max_bytes, self.max_entry_bytes):
            raise too_large(size)
        self._make(path.parent)
        mode = 0o600 if self.is_private else 0o666
        write_atomically(path, [self.seal.of(key, data), data], mode=mode, is_durable=True)
        self._limit.added(size, path)

    def delete(self, key: str) -> None:
        self.file(key).unlink(missing_ok=True)

    def entries(self) -> Iterator[ListedEntry]:
        from foregrad.process.eviction import entry_files

        for found in entry_files(self.root):
            yield ListedEntry(found.path.stem, found.size, found.used_ns / 1e9, self.name)

    def gc(self, max_bytes: int | None = None) -> Swept:
        """Remove what was used longest ago until the folder is within its limit, and what killed writers left."""
        return self._limit.sweep(max_bytes)

    def code_bytes(self) -> dict[str, int]:
        """The compiled code that shares its limit, by folder."""
        return self._limit.code_bytes()

    def count(self, name: str) -> None:
        """One more of something that is counted in all processes together."""
        counts = self.root / "counts"
        try:
            self._make(counts)
            with open(counts / name, "ab", buffering=0) as file:
                file.write(b"+")
        except OSError as error:
            log.debug("not counted: %s", error)

    def counted(self) -> dict[str, int]:
        return {file.name: file.stat().st_size for file in (self.root / "counts").glob("*")}

    def acquire(self, key: str, owner: str) -> LeaseHolder | None:
        self._make(self.file(key).parent)
        return self._lease(key).acquire(owner)

    def renew(self, key: str, owner: str) -> None:
        self._lease(key).renew(owner)

    def release(self, key: str, owner: str) -> None:
        self._lease(key).release(owner)

    def _lease(self, key: str) -> LeaseFile:
        from foregrad.cache.store.lease_file import LeaseFile

        return LeaseFile(self.file(key).with_suffix(".lease"), key, self.seal)

    def _make(self, part: Path) -> None:
        if part.is_dir():
            return
        for folder in (self.path, self.root, part):
            make_folder(folder, is_private=self.is_private)
        if self.is_private:
            check_private(self.path)

    def _read(self, key: str, path: Path) -> Hit | Miss:
        opened = self._open(path)
        if isinstance(opened, Miss):
            return opened
        with opened as file:
            length = min(os.fstat(file.fileno()).st_size, self.max_entry_bytes) - self.seal.size
            stated = stated_length(os.pread(file.fileno(), PRELUDE_BYTES, self.seal.size))
            if stated is not None and stated != length:
                return Miss(f"damaged: it has {length} bytes where {stated} belong")
            seal, data = file.read(self.seal.size), file.read(max(0, length))
        return self.seal.open(key, seal, data) or Hit(data, self.name)

    def _open(self, path: Path) -> BinaryIO | Miss:
        try:
            if self.is_private and (reason := why_not_private(path.parent.stat())):
                return Miss(f"refused: of {path.parent.name}, {reason}")
            # A pipe that somebody has put into a shared folder must not block us.
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return Miss(NOT_THERE)
        if refusal := self._refusal(os.fstat(handle)):
            os.close(handle)
            return refusal
        return open(handle, "rb")

    def _refusal(self, found: os.stat_result) -> Miss | None:
        """Why a file is not even read, None if it is."""
        if not stat.S_ISREG(found.st_mode):
            return Miss("refused: it is no file")
        if self.is_private and (reason := why_not_private(found)):
            return Miss(f"refused: {reason}")
        if found.st_size > self.max_entry_bytes:
            return Miss(f"too large: {found.st_size} bytes")
        return None

    def _remove_damaged(self, key: str, path: Path) -> None:
        """Away with it, unless a good one has come to its place since we looked."""
        try:
            remove_if(path, lambda aside: isinstance(self._read(key, aside), Miss))
        except OSError as error:
            log.info("a damaged entry stays in the cache: %s", error)

    @cached_property
    def _limit(self) -> SizeLimit:
        from foregrad.process.eviction import SizeLimit

        return SizeLimit(self.path, self.max_bytes, self.version)
