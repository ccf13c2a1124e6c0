"""Lease file: who works on an entry, as a file beside it.

Its contents name the owner; its time moves while the owner lives. A waiter compares that time with itself only, since
the clocks of two machines may differ. In a folder that others can write, the name is signed.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from foregrad.cache.store.layer import LeaseHolder, NotOurs
from foregrad.cache.store.private_files import create
from foregrad.cache.store.seal import Seal

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
        if self._holder().owner != owner:
            return
        aside = self._beside()
        os.rename(self.path, aside)
        if self.seal.owner_in(self.key, _read(aside)) == owner:
            aside.unlink()
        else:
            os.rename(aside, self.path)

    def _create(self, lease: bytes) -> None:
        handle = create(self.path, is_private=True)
        try:
            os.write(handle, lease)
        except OSError:
            self.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(handle)

    def _link(self, lease: bytes) -> None:
        """Create it whole: an empty one cannot be told from a stranger's."""
        written = self._beside()
        try:
            with open(create(written, is_private=False), "wb") as file:
                file.write(lease)
            os.link(written, self.path)
        finally:
            written.unlink(missing_ok=True)

    def _beside(self) -> Path:
        return self.path.with_name(f".{self.path.stem[:16]}.{secrets.token_hex(8)}.tmp")

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
