"""Atomic writes: a file gets its name when it is finished. Others see all of it or nothing, however many processes
write it, and wherever they are killed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

Bytes = bytes | memoryview


def write_atomically(path: Path, pieces: Iterable[Bytes], *, mode: int = 0o600, is_durable: bool = False) -> None:
    """Let a file hold these pieces. One that was there is replaced; who has opened it keeps it.

    A durable one is on the disk before it gets its name. That takes a while, and is for what the user has saved and for
    what took long to make; the rest is made again where the machine has stopped too early.
    """
    with made_beside(path) as temporary:
        _write(temporary, pieces, mode, is_durable)


def create_whole(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Make a file that holds this; FileExistsError if there is one."""
    with made_beside(path) as temporary:
        _write(temporary, [data], mode, is_durable=False)
        os.link(temporary, path)
        temporary.unlink()


@contextmanager
def made_beside(path: Path) -> Iterator[Path]:
    """A name in the same folder. What the block leaves there gets the path's own name at its end; if it raises, or
    leaves nothing, all stays as it was."""
    temporary = _beside(path)
    try:
        yield temporary
        if temporary.exists():
            os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def remove_if(path: Path, is_wrong: Callable[[Path], bool]) -> None:
    """Remove a file that was found to be wrong. It is looked at once more where nobody else finds it: if another has
    come to its place since, that one comes back."""
    aside = _beside(path)
    os.rename(path, aside)
    if is_wrong(aside):
        aside.unlink()
    else:
        os.rename(aside, path)


def create(path: Path, *, mode: int = 0o600) -> int:
    """Open a new file for writing; FileExistsError if there is one."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)


def _write(path: Path, pieces: Iterable[Bytes], mode: int, is_durable: bool) -> None:
    handle = create(path, mode=mode)
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                rest = rest[os.write(handle, rest) :]
        if is_durable:
            os.fsync(handle)
    finally:
        os.close(handle)


def _beside(path: Path) -> Path:
    """A new name for a temporary file in the same folder."""
    return path.with_name(f".{path.name[:16]}.{secrets.token_hex(8)}.tmp")
