"""Keys: who may have written what is read. Keys sign, and say whether a signature is theirs.

A key is given as bytes, or as one line of text in a file or in `FOREGRAD_CACHE_KEY`:

    hmac-sha256:<hex>       a secret of 32 bytes or more that writers and readers share
    ed25519-secret:<hex>    signs, and checks what it has signed; needs `cryptography`
    ed25519-public:<hex>    checks only; needs `cryptography`
    <hex>                   the same as hmac-sha256:<hex>
"""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from foregrad.core.errors import UntrustedArtifact
from foregrad.process.environment import CACHE_KEY

MOST_CHARACTERS = 4096  # of a file with a key, which may be a device that never ends

_MAKE_ONE = "`openssl rand -hex 32` makes one"


@dataclass(frozen=True)
class FileSignature:
    """What stands in a file: the algorithm, which key, and the signature itself."""

    algorithm: str
    key_id: bytes
    value: bytes

    def __str__(self) -> str:
        return f"{self.algorithm} key {self.key_id.hex()[:16]}"


@dataclass(frozen=True)
class SharedKey:
    """A secret that writers and readers share: HMAC-SHA256."""

    secret: bytes = field(repr=False)
    algorithm = "hmac-sha256"
    signature_length = 32

    def __post_init__(self) -> None:
        if len(self.secret) < 32:
            raise ValueError(f"an hmac-sha256 key has 32 bytes or more, this one {len(self.secret)}; {_MAKE_ONE}")

    @property
    def key_id(self) -> bytes:
        return hmac.digest(self.secret, b"foregrad key id", "sha256")

    def sign(self, message: bytes) -> bytes:
        return hmac.digest(self.secret, message, "sha256")

    def has_signed(self, message: bytes, value: bytes) -> bool:
        return hmac.compare_digest(self.sign(message), value)


@dataclass(frozen=True)
class PublicKey:
    """The public half of an Ed25519 key: says whether the secret half has signed."""

    public: bytes
    algorithm = "ed25519"

    def __post_init__(self) -> None:
        _check_ed25519(self.public)

    @property
    def key_id(self) -> bytes:
        return hashlib.sha256(self.public).digest()

    def has_signed(self, message: bytes, value: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            _ed25519().Ed25519PublicKey.from_public_bytes(self.public).verify(value, message)
        except (InvalidSignature, ValueError):  # ValueError: the key is no point of the curve
            return False
        return True


@dataclass(frozen=True)
class SecretKey:
    """An Ed25519 key that signs; readers need its public half only."""

    secret: bytes = field(repr=False)
    algorithm = "ed25519"
    signature_length = 64

    def __post_init__(self) -> None:
        _check_ed25519(self.secret)

    @property
    def public(self) -> PublicKey:
        return PublicKey(self._private.public_key().public_bytes_raw())

    @property
    def key_id(self) -> bytes:
        return self.public.key_id

    def sign(self, message: bytes) -> bytes:
        return bytes(self._private.sign(message))

    def has_signed(self, message: bytes, value: bytes) -> bool:
        return self.public.has_signed(message, value)

    @property
    def _private(self) -> Any:
        return _ed25519().Ed25519PrivateKey.from_private_bytes(self.secret)


Signer = SharedKey | SecretKey
Key = SharedKey | SecretKey | PublicKey

_KINDS: dict[str, type[Key]] = {
    "hmac-sha256": SharedKey,
    "ed25519-secret": SecretKey,
    "ed25519-public": PublicKey,
}


@dataclass(frozen=True)
class Trust:
    """The keys whose signatures are accepted; with no key at all, nothing is."""

    keys: tuple[Key, ...]

    def knows(self, signature: FileSignature | None) -> bool:
        """Whether a file says that one of the keys has signed it; `check` finds out whether that is so."""
        names = {(key.algorithm, key.key_id) for key in self.keys}
        return signature is not None and (signature.algorithm, signature.key_id) in names

    def check(self, where: str, signature: FileSignature | None, message: bytes) -> None:
        """Raise unless one of the keys has signed the message."""
        if signature is None:
            raise _untrusted(where, "is not signed", self)
        fitting = [key for key in self.keys if key.algorithm == signature.algorithm]
        key = next((key for key in fitting if key.key_id == signature.key_id), None)
        if key is None:
            raise _untrusted(where, f"is signed by {signature}", self)
        if not key.has_signed(message, signature.value):
            raise _untrusted(
                where, f"says that it is signed by {signature}, but that key did not sign these bytes", self
            )


def parse_key(text: str, where: str) -> Key:
    """A key from its line of text; `where` says in errors where that line stands."""
    kind, _, digits = text.strip().rpartition(":")
    kind = kind or SharedKey.algorithm
    if kind not in _KINDS:
        raise ValueError(f"{where} holds a key of an unknown kind; known are {', '.join(_KINDS)}")
    try:
        material = bytes.fromhex(digits)
    except ValueError:
        raise ValueError(f"{where} holds a key that is not in hexadecimal digits; {_MAKE_ONE}") from None
    return _KINDS[kind](material)


def key_from_file(path: Path) -> Key:
    """The key in a file. A secret one is refused if others can read it, any one if others can replace it."""
    with open(path, encoding="utf-8", errors="replace") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        key = parse_key(file.read(MOST_CHARACTERS), str(path))
    if mode & (0o022 if isinstance(key, PublicKey) else 0o077):
        raise ValueError(f"{path} holds a key and is open to others (mode {mode:o}): chmod 600 {path}")
    return key


def key_from_environment() -> Key | None:
    """The key in `FOREGRAD_CACHE_KEY`, None if that is not set."""
    return parse_key(CACHE_KEY.value, CACHE_KEY.name) if CACHE_KEY.value else None


def _untrusted(where: str, what: str, trust: Trust) -> UntrustedArtifact:
    accepted = ", ".join(f"{key.algorithm} key {key.key_id.hex()[:16]}" for key in trust.keys) or "none"
    return UntrustedArtifact(
        f"{where} {what}; keys accepted here: {accepted}. It was not used: build it again, get it from someone "
        f"whom you trust, or add their key."
    )


def _check_ed25519(material: bytes) -> None:
    _ed25519()
    if len(material) != 32:
        raise ValueError(f"an ed25519 key has 32 bytes, this one {len(material)}")


def _ed25519() -> ModuleType:
    """Imported by the first key that needs it, so that a missing package is said where the key is given."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError:
        need = "ed25519 keys need the package cryptography: pip install 'foregrad[trust]', or use an hmac-sha256 key"
        raise ModuleNotFoundError(need, name="cryptography") from None
    return ed25519
