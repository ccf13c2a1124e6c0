"""Seal: 40 bytes before the content of an entry, from which a reader knows that it is what was written for this key.

    kind     8 bytes   which kind of seal this is
    tag     32 bytes   SHA-256 of kind, key and content; with a secret, HMAC-SHA256 of the same
    content

The plain seal finds damage. The signed one also proves that the writer knew the secret: it is asked of whatever comes
from a place that others can write. Both hold for one key only, so that an entry cannot pass for another one.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field

from foregrad.keep.layer import Miss

SIZE = 40
_DIGEST = b"fg-plain"
_SIGNED = b"fg-signd"


@dataclass(frozen=True)
class Seal:
    """How entries are sealed: plainly, or with a secret."""

    secret: bytes | None = field(default=None, repr=False)

    @property
    def is_signed(self) -> bool:
        return self.secret is not None

    def of(self, key: str, data: bytes | memoryview) -> bytes:
        """The 40 bytes to write before the data."""
        kind = _SIGNED if self.is_signed else _DIGEST
        start = kind + key.encode() + b"\0"
        if self.secret is None:
            tag = hashlib.sha256(start)
            tag.update(data)
            return kind + tag.digest()
        signature = hmac.new(self.secret, start, hashlib.sha256)
        signature.update(data)
        return kind + signature.digest()

    def open(self, key: str, seal: bytes, data: bytes | memoryview) -> Miss | None:
        """What is wrong with an entry, None if nothing is."""
        if len(seal) < SIZE:
            return Miss("damaged: it is cut short")
        kind = seal[:8]
        if self.is_signed and kind == _DIGEST:
            return Miss("unsigned")
        if kind != (_SIGNED if self.is_signed else _DIGEST):
            return Miss("damaged: it does not begin as an entry does")
        if hmac.compare_digest(seal, self.of(key, data)):
            return None
        return Miss("wrongly signed, or damaged" if self.is_signed else "damaged: its digest is another one")


#: For what nobody else can write.
PLAIN = Seal()
