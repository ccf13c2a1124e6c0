"""Lease file: who works on an entry, as a file beside it.

Its contents name the owner; its time moves while the owner lives. A waiter compares that time with itself only, since
the clocks of two machines may differ. In a folder that others can write, the name is signed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from foregrad.cache.store.layer import LeaseHolder, NotOurs
from foregrad.cache.store.seal import Seal
from foregrad.process.atomic_write import create, create_whole, remove_if

_LEASE_BYTES = 1024


@dataclass(frozen=True)
class LeaseFile:
    """The lease of one entry."""

    path: Path
    key: str
    seal: Seal

    def acquire(self, owner: str) -> LeaseHolder | None:
        """None if the owner has the lease now, else who has it."""
        lease = self.seal.lease(self.key, owner)
        try:
            (self._link if self.seal.is_signed else self._create)(lease)
        except FileExistsError:
            return self._holder()
        return None

    def renew(self, owner: str) -> None:
        if self._holder().owner == owner:
            os.utime(self.path)

    def release(self, owner: str) -> None:
        """End a lease, one's own or that of a dead owner. If it has passed to a third by now, that one gets it back."""
        if self._holder().owner == owner:
            remove_if(self.path, lambda aside: self.seal.owner_in(self.key, _read(aside)) == owner)

    def _create(self, lease: bytes) -> None:
        handle = create(self.path)
        try:
            os.write(handle, lease)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def _link(self, lease: bytes) -> None:
        """Create it whole: an empty one cannot be told from a stranger's."""
        create_whole(self.path, lease, mode=0o666)

    def _holder(self) -> LeaseHolder:
        """Who has the lease; nobody's name if it was released just now."""
        try:
            owner = self.seal.owner_in(self.key, _read(self.path))
            if owner is None:
                raise NotOurs
            return LeaseHolder(owner, self.path.stat().st_mtime_ns)
        except FileNotFoundError:
            return LeaseHolder("", 0)


def _read(path: Path) -> bytes:
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(handle, _LEASE_BYTES)
    finally:
        os.close(handle)
