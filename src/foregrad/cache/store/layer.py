"""Layer: one place that keeps entries: a folder, a Redis server, a file system behind a URL.

A layer answers `get` with a Hit or with a Miss and its reason. Whatever else goes wrong (no server, a full disk) is an
OSError, and `failing_layer.py` decides what that means.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

NOT_THERE = "not there"

_KEY = re.compile(r"[0-9a-f]{8,128}")


@dataclass(frozen=True)
class Hit:
    """The bytes of an entry, checked, and the layer that they come from."""

    data: bytes
    source: str


@dataclass(frozen=True)
class Miss:
    """Why there is no entry to use: `damaged: it is cut short (folder)` is of the kind `damaged`."""

    reason: str

    @property
    def kind(self) -> str:
        return re.split(r":| \(", self.reason, maxsplit=1)[0]


@dataclass(frozen=True)
class ListedEntry:
    """An entry as a listing shows it: `used` is when it was last read or written, in seconds since 1970, if known."""

    key: str
    size: int
    used: float | None
    source: str


@dataclass(frozen=True)
class LeaseHolder:
    """Who works on an entry; `beat` changes as long as the owner is alive."""

    owner: str
    beat: float


class Unreachable(OSError):
    """A layer that does not answer, and need not be asked again at once."""


class NotOurs(OSError):
    """A lease that somebody else has put into a place that others can write. Nobody waits for it."""

    def __init__(self) -> None:
        super().__init__("the lease that is there is not signed with our key")


class Layer(Protocol):
    """A place that keeps entries."""

    @property
    def name(self) -> str: ...

    def read(self, key: str) -> Hit | Miss:
        """The entry, checked. Nothing is changed by that."""

    def get(self, key: str) -> Hit | Miss:
        """The same, for use: the layer may note that, and remove what is damaged."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry; one of the same key is replaced."""

    def delete(self, key: str) -> None:
        """Remove an entry, if it is there."""

    def peek(self, key: str, offset: int, length: int) -> bytes:
        """Some bytes of an entry's content, which nobody has checked: to list it, not to use it."""

    def entries(self) -> Iterable[ListedEntry]:
        """All entries; they are not read for that."""


@runtime_checkable
class Leases(Protocol):
    """A layer that also knows who works on an entry. `claim.py` says how this is used."""

    def acquire(self, key: str, owner: str) -> LeaseHolder | None:
        """None if the owner has the lease now, else who has it. `NotOurs` if that is a stranger."""

    def renew(self, key: str, owner: str) -> None:
        """Show that the owner is alive."""

    def release(self, key: str, owner: str) -> None:
        """End the lease of an owner, if it still is that owner's."""


def too_large(size: int) -> OSError:
    return OSError(errno.EFBIG, f"an entry of {size} bytes is over the limit")


def check_key(key: str) -> str:
    """The key, which can be part of a path: hexadecimal digits and nothing else."""
    if not _KEY.fullmatch(key):
        raise ValueError(f"a key is 8 to 128 lower-case hexadecimal digits, not {key!r}")
    return key


def is_key(text: str) -> bool:
    return _KEY.fullmatch(text) is not None
