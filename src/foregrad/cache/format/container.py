"""Entries: a JSON header and blobs in one `.fg` file, or in bytes. FORMAT.md specifies it byte by byte.

Reading runs nothing of an entry. Whatever is wrong with one is a CorruptArtifact or an UntrustedArtifact.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foregrad.cache.format import header as head
from foregrad.cache.format.byte_source import ByteSource, InMemory, OpenFile
from foregrad.cache.format.header import DEFAULT_LIMITS, Blob, Header, Limits, corrupt
from foregrad.process.atomic_write import write_atomically

if TYPE_CHECKING:
    from foregrad.cache.format.keys import Signer, Trust

__all__ = ["Blob", "Entry", "Header", "Limits", "pack", "read_header", "sign", "unpack", "write"]

Bytes = bytes | bytearray | memoryview

_PIECE = 1 << 20


@dataclass(frozen=True)
class Entry:
    """A header that is right, and blobs whose digests are checked whenever they are asked for."""

    header: Header
    source: ByteSource

    @property
    def about(self) -> dict[str, Any]:
        """What was packed as the header."""
        return self.header.about

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(blob.name for blob in self.header.blobs)

    def blob(self, name: str) -> memoryview:
        """The bytes of a blob, read-only. Of an entry in memory they are no copy."""
        blob = self._named(name)
        data = self.source.read(blob.offset, blob.length)
        self._check(blob, hashlib.sha256(data).hexdigest())
        return data

    def check(self, name: str, told: Callable[[int], object] = int) -> None:
        """Read a blob piece by piece, and keep nothing of it. `told` gets the length of each piece."""
        for piece in self.pieces(name):
            told(len(piece))

    def pieces(self, name: str) -> Iterator[memoryview]:
        """A blob piece by piece; the last one is followed by an error if the digest of all is wrong."""
        blob = self._named(name)
        digest = hashlib.sha256()
        for offset in range(blob.offset, blob.end, _PIECE):
            piece = self.source.read(offset, min(_PIECE, blob.end - offset))
            digest.update(piece)
            yield piece
        self._check(blob, digest.hexdigest())

    @contextmanager
    def taken(self, name: str) -> Iterator[memoryview]:
        """A blob as memory of your own, to be written after the block. Inside, its digest is still being checked, on
        another core; the block ends with an error if it is wrong.
        """
        blob = self._named(name)
        data = self.source.take(blob.offset, blob.length)
        with ThreadPoolExecutor(1) as pool:
            digest = pool.submit(lambda: hashlib.sha256(data).hexdigest())
            try:
                yield data
            finally:
                self._check(blob, digest.result())

    def _named(self, name: str) -> Blob:
        blob = next((blob for blob in self.header.blobs if blob.name == name), None)
        if blob is None:
            raise corrupt(self.source, f"has no blob {name!r}; it has {', '.join(self.names) or 'none'}")
        if blob.end > self.source.length:
            raise corrupt(
                self.source, f"ends before its blob {name!r} does, which has bytes {blob.offset} to {blob.end}"
            )
        return blob

    def _check(self, blob: Blob, sha256: str) -> None:
        if sha256 != blob.sha256:
            raise corrupt(self.source, f"is damaged in its blob {blob.name!r}, bytes {blob.offset} to {blob.end}")


def pack(header: dict[str, Any], blobs: Mapping[str, Bytes], *, signer: Signer | None = None) -> bytes:
    """An entry as bytes, the same for equal input."""
    return b"".join(_pieces(header, blobs, signer))


def write(path: Path, header: dict[str, Any], blobs: Mapping[str, Bytes], *, signer: Signer | None = None) -> None:
    """An entry as a file, which is there as a whole or not at all; until then an older one of that name stays."""
    write_atomically(path, list(_pieces(header, blobs, signer)), mode=0o666, is_durable=True)


def sign(path: Path, signer: Signer, told: Callable[[int, int], object]) -> None:
    """Sign a file, and check all of it meanwhile. Blobs are copied piece by piece; `told` gets the length of each piece
    and of the file."""
    entry = unpack(path)
    if (free := shutil.disk_usage(path.parent).free) < entry.header.file_length:
        raise OSError(
            errno.ENOSPC, f"{path} has {entry.header.file_length} bytes, and {free} are free for its signed copy"
        )
    start = entry.header.blobs[0].offset if entry.header.blobs else 0
    rows = [replace(blob, offset=blob.offset - start) for blob in entry.header.blobs]
    pieces = _signed(entry, head.build_from_rows(entry.about, rows, signer), told)
    write_atomically(path, pieces, mode=0o666, is_durable=True)


def _signed(entry: Entry, beginning: bytes, told: Callable[[int, int], object]) -> Iterator[memoryview]:
    yield memoryview(beginning)
    end = 0
    for blob in entry.header.blobs:
        yield memoryview(bytes(head.aligned(end) - end))
        for piece in entry.pieces(blob.name):
            told(len(piece), entry.header.file_length)
            yield piece
        end = head.aligned(end) + blob.length


def read_header(source: bytes | Path, *, limits: Limits = DEFAULT_LIMITS) -> Header:
    """What an entry says of itself. No blob is read, and none need be there."""
    return head.read(_open(source), None, limits)


def unpack(source: bytes | Path, *, trust: Trust | None = None, limits: Limits = DEFAULT_LIMITS) -> Entry:
    """An entry, to read blobs from. With `trust`, its signature is checked before its header is parsed."""
    opened = _open(source)
    header = head.read(opened, trust, limits)
    check_length(opened, header)
    return Entry(header, opened)


def check_length(opened: ByteSource, header: Header) -> None:
    """Refuse a file that has more or fewer bytes than its header says, or something between its blobs."""
    if opened.length != header.file_length:
        what = "is cut short" if opened.length < header.file_length else "has bytes after its end"
        raise corrupt(opened, f"{what}: it has {opened.length} bytes where {header.file_length} belong")
    for begin, end in header.gaps:
        if any(opened.read(begin, end - begin)):
            raise corrupt(opened, f"has something in bytes {begin} to {end}, where zeros belong")


def _open(source: bytes | Path) -> ByteSource:
    return OpenFile(source) if isinstance(source, Path) else InMemory(source)


def _pieces(about: dict[str, Any], blobs: Mapping[str, Bytes], signer: Signer | None) -> Iterator[memoryview]:
    """The bytes of an entry in order. Blobs are not copied."""
    views = {name: memoryview(blobs[name]).cast("B") for name in sorted(blobs)}
    yield memoryview(head.build(about, views, signer))
    end = 0
    for view in views.values():
        yield memoryview(bytes(head.aligned(end) - end))
        yield view
        end = head.aligned(end) + len(view)
