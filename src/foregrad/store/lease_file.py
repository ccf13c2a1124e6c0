"""Lease file: who works on an entry, as a file beside it.

Its contents name the owner; its time moves while the owner lives. A waiter compares that time with itself only, since
the clocks of two machines may differ.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from foregrad.store.layer import Holder
from foregrad.store.private import create

_OWNER_BYTES = 1024


@dataclass(frozen=True)
class LeaseFile:
    """The lease of one entry."""

    path: Path
    is_private: bool

    def acquire(self, owner: str) -> Holder | None:
        """None if the owner has the lease now, else who has it."""
        try:
            handle = create(self.path, is_private=self.is_private)
        except FileExistsError:
            return self._holder()
        try:
            os.write(handle, owner.encode())
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)
        return None

    def renew(self, owner: str) -> None:
        if self._holder().owner == owner:
            os.utime(self.path)

    def release(self, owner: str) -> None:
        """End a lease, one's own or that of a dead owner. If it has passed to a third by now, that one gets it back."""
        if self._holder().owner != owner:
            return
        aside = self.path.with_name(f".{self.path.stem[:16]}.{secrets.token_hex(8)}.tmp")
        os.rename(self.path, aside)
        if _read(aside) == owner:
            aside.unlink()
        else:
            os.rename(aside, self.path)

    def _holder(self) -> Holder:
        """Who has the lease; nobody's name if it was released just now."""
        try:
            return Holder(_read(self.path), self.path.stat().st_mtime_ns)
        except FileNotFoundError:
            return Holder("", 0)


def _read(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(handle, _OWNER_BYTES).decode(errors="replace")
    finally:
        os.close(handle)
