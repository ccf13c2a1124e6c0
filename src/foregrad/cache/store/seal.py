"""Seal: the bytes before the content of an entry, from which a reader knows that it is what was written for this key.

    kind      8 bytes   plain, or the algorithm of a signature
    tag                 of kind, key and the content's SHA-256: SHA-256 (32 bytes), HMAC-SHA256 (32) or Ed25519 (64)
    content

The plain seal finds damage. The signed ones also prove who wrote the entry: that is asked of whatever comes from a
place that others can write. All of them hold for one key only, so that an entry cannot pass for another one.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from foregrad.cache.format.byte_source import OpenFile
from foregrad.cache.store.layer import Miss

if TYPE_CHECKING:
    from foregrad.cache.format.keys import Key

_KINDS = {"plain": b"fg-plain", "hmac-sha256": b"fg-hmac2", "ed25519": b"fg-ed255"}


@dataclass(frozen=True)
class Seal:
    """How entries are sealed: plainly, or signed with a key."""

    signer: Key | None = None

    @property
    def is_signed(self) -> bool:
        return self.signer is not None

    @property
    def kind(self) -> bytes:
        return _KINDS[self.signer.algorithm if self.signer else "plain"]

    @property
    def size(self) -> int:
        return _size(self.kind)

    def of(self, key: str, data: bytes) -> bytes:
        """The bytes to write before the data."""
        from foregrad.cache.format.keys import PublicKey

        message = self._message(key, data)
        if self.signer is None:
            return self.kind + hashlib.sha256(message).digest()
        if isinstance(self.signer, PublicKey):
            raise PermissionError("a public key signs nothing")
        return self.kind + self.signer.sign(message)

    def open(self, key: str, seal: bytes, data: bytes) -> Miss | None:
        """What is wrong with an entry, None if nothing is."""
        kind, tag = seal[:8], seal[8:]
        if self.is_signed and kind == _KINDS["plain"]:
            return Miss("unsigned")
        if kind != self.kind:
            return Miss("damaged: it does not begin as an entry does")
        if len(seal) < self.size:
            return Miss("damaged: it is cut short")
        message = self._message(key, data)
        if self.signer is None:
            return None if tag == hashlib.sha256(message).digest() else Miss("damaged: its digest is another one")
        return None if self.signer.has_signed(message, tag) else Miss("wrongly signed, or damaged")

    def lease(self, key: str, owner: str) -> bytes:
        """The lease of an entry as it is written: who has it, signed where others can write."""
        data = owner.encode("latin-1", "replace")
        return self.of(_lease_of(key), data) + data if self.is_signed else data

    def owner_in(self, key: str, lease: bytes) -> str | None:
        """Who has a lease, None if it is not signed as it should be."""
        if not self.is_signed:
            return lease.decode("latin-1")
        data = lease[self.size :]
        return None if self.open(_lease_of(key), lease[: self.size], data) else data.decode("latin-1")

    def _message(self, key: str, data: bytes) -> bytes:
        return self.kind + key.encode() + b"\0" + hashlib.sha256(data).digest()


def seal_length(path: Path) -> int:
    """How many bytes of a file are the seal of an entry of a cache; 0 if it has none."""
    kind = bytes(OpenFile(path).read(0, 8))
    return _size(kind) if kind in _KINDS.values() else 0


def _size(kind: bytes) -> int:
    return len(kind) + (64 if kind == _KINDS["ed25519"] else 32)


def _lease_of(key: str) -> str:
    """What a lease is signed for: no entry has such a key."""
    return f"lease of {key}"


#: For what nobody else can write.
PLAIN = Seal()
