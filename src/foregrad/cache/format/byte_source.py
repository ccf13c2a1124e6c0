"""The bytes of an entry, in memory or in a file that is open.

A file is read, not mapped: if it is cut short, or withdrawn by a server, that is an error to handle and not the end of
the process. It stays open, and so stays the same file when another one takes its name.
"""

from __future__ import annotations

import mmap
import os
import stat
import weakref
from pathlib import Path
from typing import Protocol

from foregrad.core.errors import CorruptArtifact

_LARGE = 4 << 20


class Readable(Protocol):
    """Bytes at offsets: all that it takes to read a header."""

    @property
    def where(self) -> str: ...

    def read(self, offset: int, length: int) -> memoryview:
        """These bytes, fewer where there are no more."""
        ...


class ByteSource(Readable, Protocol):
    """All bytes of an entry."""

    length: int

    def take(self, offset: int, length: int) -> memoryview:
        """These bytes as memory that may be written, for the reader alone."""
        ...


class InMemory:
    """Bytes that are there already; what is read of them is no copy."""

    where = "the entry"

    def __init__(self, data: bytes) -> None:
        self.length = len(data)
        self._view = memoryview(data)

    def read(self, offset: int, length: int) -> memoryview:
        return self._view[offset : offset + length]

    def take(self, offset: int, length: int) -> memoryview:
        taken = _memory(length)
        taken[:] = self.read(offset, length)
        return taken


class OpenFile:
    """A file from its byte `start` on, open as long as there is a reference to this."""

    def __init__(self, path: Path, start: int = 0) -> None:
        # without O_NONBLOCK a pipe would wait for its writer
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        state = os.fstat(self._descriptor)
        self.where = str(path)
        self.length = max(0, state.st_size - start)
        self._start = start
        if not stat.S_ISREG(state.st_mode):
            raise CorruptArtifact(f"{path} is no file but a folder, a pipe or a device; give the path of a .fg file.")

    def read(self, offset: int, length: int) -> memoryview:
        return self.take(offset, length).toreadonly()

    def take(self, offset: int, length: int) -> memoryview:
        buffer = _memory(max(0, min(length, self.length - offset)))
        filled = 0
        try:
            while count := os.preadv(self._descriptor, [buffer[filled:]], self._start + offset + filled):
                filled += count
        except OSError as error:
            raise CorruptArtifact(
                f"{self.where} cannot be read at byte {offset + filled}: {error}. Nothing of it was used: build it "
                "again, or get it again from where it came."
            ) from error
        return buffer[:filled]


def _memory(length: int) -> memoryview:
    """Memory to read into, which is not filled with zeros first if it is much. Large pages would be faster where the
    kernel has some at hand, but it may take most of a second to make them.
    """
    if length < _LARGE:
        return memoryview(bytearray(length))
    return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
