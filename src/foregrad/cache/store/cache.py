"""Cache: compiled programs by their keys, in one place or in several layers.

    cache = fg.Cache()                                                          # this user's folder
    cache = fg.Cache([fg.Cache(), "redis://cache:6379/0"], key=secret)          # the folder first, then a server

Nothing here raises into training: what cannot be read is a miss with its reason, what cannot be written a line of the
log.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Union
from urllib.parse import unquote, urlsplit

from foregrad.cache.store import option_checks as given
from foregrad.cache.store.failing_layer import FailingLayer
from foregrad.cache.store.folder import Folder
from foregrad.cache.store.layer import NOT_THERE, Hit, ListedEntry, Miss, check_key
from foregrad.cache.store.seal import PLAIN, Seal
from foregrad.core.errors import CannotKeep
from foregrad.process.environment import CACHE_VERIFY
from foregrad.process.folders import MAX_BYTES, programs_folder
from foregrad.process.forks import lock

if TYPE_CHECKING:
    from foregrad.cache.format.keys import Key
    from foregrad.cache.store.claim import Claim
    from foregrad.process.eviction import Swept

log = logging.getLogger("foregrad")

Place = str | os.PathLike[str]
GivenKey = Union[str, bytes, "Key", None]


@dataclass(frozen=True)
class Counts:
    """How often an entry was found, and by which kind of reason it was not."""

    hits: int
    misses: dict[str, int]


@dataclass(frozen=True)
class Stats:
    """What is in the folders of a cache, and how often it was asked: by this process, and by all of them ever. `code`
    has the bytes of compiled code by folder, which share the limit of this user's cache."""

    entries: int
    bytes: int
    here: Counts
    ever: Counts
    code: dict[str, int]


@dataclass(frozen=True)
class Damaged:
    """An entry that cannot be used, where, and why."""

    key: str
    source: str
    reason: str


@dataclass(frozen=True)
class Copied:
    """The keys that were copied from one cache to another, and those that were not, with the reason."""

    keys: list[str]
    failed: dict[str, str]


class Cache:
    """Compiled programs that outlive their process, by their keys.

    `place` is a folder, a URL (`redis://…`, `file://…`, any that fsspec knows) or a list of these and of other caches:
    the first layer is asked first, what a later one has is copied to those before it, and what is written goes to all.
    Without a place it is this user's folder.

    What comes from a URL is used only if it is signed with `key`: a secret that all who share the place know, as bytes
    or in the text of `cache/format/keys.py`, or a key from there (`FOREGRAD_CACHE_KEY` if it is not given). `max_bytes`
    limits folders, whose entries go in the order in which they were last used, and with this user's folder all compiled
    code; `max_entry_bytes` limits each entry.
    With `readonly`, or with a public key, nothing is written.

    With `verify_every=N` about one in N calls that are found without tracing is captured all the same, in a
    copy of the process, and compared; `wait()` waits until that is done. `FOREGRAD_CACHE_VERIFY` is N for the caches
    that are not told.
    """

    def __init__(
        self,
        place: Place | Sequence[Place | Cache] | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        max_entry_bytes: int = 10**9,
        key: GivenKey = None,
        readonly: bool = False,
        verify_every: int | None = None,
    ) -> None:
        for name, limit in (("max_bytes", max_bytes), ("max_entry_bytes", max_entry_bytes)):
            given.check_number(name, limit)
        if verify_every is not None:
            given.check_number("verify_every", verify_every)
        given.check_flag("readonly", readonly)
        given.check_key(key)
        self.verify_every = verify_every or named_rate()
        limits = {"max_bytes": max_bytes, "max_entry_bytes": max_entry_bytes}
        self._options = {**limits, "readonly": readonly, "verify_every": verify_every}
        self._has_key = key is not None
        self._layers: list[FailingLayer] = []
        self._counts: Counter[str] = Counter()
        self._checks: list[threading.Thread] = []
        self._lock = lock()
        if place is None:
            place = programs_folder()
        parts: Sequence[Any] = place if isinstance(place, (list, tuple)) else [place]
        self._parts = [given.anywhere(part) for part in parts]
        for part in parts:
            if isinstance(part, Cache):
                self._layers += [FailingLayer(each.layer, True) if readonly else each for each in part._layers]
            else:
                given.check_place(part)
                self._layers.append(_layer(part, key, max_bytes, max_entry_bytes, readonly))

    def __repr__(self) -> str:
        return f"Cache({', '.join(layer.name for layer in self._layers)})"

    def __copy__(self) -> Cache:
        return self  # as an open file it is one thing, whoever has it

    def __deepcopy__(self, memo: Any) -> Cache:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Where it is, with its limits. Keys and passwords go into no pickle."""
        if self._has_key or any(isinstance(part, str) and without_password(part) != part for part in self._parts):
            raise CannotKeep(
                f"{self!r} has a key or a password, which would stand in the pickle for everybody to read.\nName the "
                "key in FOREGRAD_CACHE_KEY in both processes, or make the cache in the process that uses it."
            )
        return (
            (default_cache, ())
            if self._parts == [str(programs_folder())]
            else (_cache_of, (self._parts, self._options))
        )

    def get(self, key: str) -> Hit | Miss:
        """The entry of a key, checked, or why there is none to use."""
        found = self._look(key)
        self._count(found)
        return found

    def get_also(self, key: str) -> Hit | Miss:
        """The same for a second key of what was looked for already: a miss of both counts once."""
        found = self._look(key)
        if isinstance(found, Hit):
            self._count(found)
        return found

    def put(self, key: str, data: bytes) -> None:
        """Keep an entry, in every layer that can. What cannot is named in the log, once."""
        self._store(key, data)

    def delete(self, key: str) -> str | None:
        """Remove an entry from every layer; why one may still have it, None if none has."""
        check_key(key)
        return self._reasons(lambda layer: layer.delete(key))

    def peek(self, entry: ListedEntry, offset: int, length: int) -> bytes:
        """Some bytes of an entry that was listed, which nobody has checked: to describe it, not to use it."""
        layer = next(layer for layer in self._layers if layer.name == entry.source)
        return layer.layer.peek(entry.key, offset, length)

    def entries(self, *, near: bool = False) -> list[ListedEntry]:
        """All entries, each as the first layer has it; those that were used last come first.

        With `near` servers are not asked, if there is a folder.
        """
        found: dict[str, ListedEntry] = {}
        folders = [layer for layer in self._layers if isinstance(layer.layer, Folder)]
        for layer in folders if near and folders else self._layers:
            for entry in layer.layer.entries():
                found.setdefault(entry.key, entry)
        return sorted(found.values(), key=lambda entry: -(entry.used or 0.0))

    @contextmanager
    def claim(self, key: str, timeout: float = 600.0) -> Iterator[Claim]:
        """One process makes the entry while the others wait for it, and find it in `claim.found`.

        Where that is None the entry is ours to make: nobody else is at it, or whoever was has died or takes more than
        `timeout` seconds.
        """
        from foregrad.cache.store.claim import claim

        check_key(key)

        def look() -> Hit | None:
            found = self._look(key)
            return found if isinstance(found, Hit) else None

        # The last layer is the one that most processes share.
        places = [layer for layer in reversed(self._layers) if layer.has_leases]
        with claim(look, places, key, timeout) as claimed:
            if claimed.found:
                self._count(claimed.found)
            yield claimed

    def draws_check(self) -> bool:
        """Whether a call that was found without tracing is to be captured all the same.

        Each is drawn by itself, one in `verify_every`: most processes find one call, so counting in each would check
        none.
        """
        return self.verify_every is not None and secrets.randbelow(self.verify_every) == 0

    def watch(self, check: threading.Thread) -> None:
        """Take note of a check that has begun."""
        with self._lock:
            self._checks = [*(one for one in self._checks if one.is_alive()), check]

    def wait(self) -> None:
        """Wait for the checks of `verify_every` that have begun in the background."""
        for check in self._checks:
            check.join()

    def stats(self) -> Stats:
        """Counts of entries and bytes in the folders, and of hits and misses."""
        entries = [entry for folder in self._folders() for entry in folder.entries()]
        ever: Counter[str] = Counter()
        for folder in self._folders():
            ever.update(folder.counted())
        code = {name: size for folder in self._folders() for name, size in folder.code_bytes().items()}
        return Stats(len(entries), sum(entry.size for entry in entries), _counts(self._counts), _counts(ever), code)

    def gc(self, max_bytes: int | None = None) -> list[Swept]:
        """Bring each folder within its limit, or within the one given, and remove what killed writers left there."""
        return [folder.gc(max_bytes) for folder in self._folders(writable=True)]

    def verify(self) -> list[Damaged]:
        """Read every entry of every layer: those that cannot be used. They stay where they are."""
        return [
            Damaged(entry.key, layer.name, found.reason)
            for layer in self._layers
            for entry in layer.layer.entries()
            if isinstance(found := layer.layer.read(entry.key), Miss) and found.reason != NOT_THERE  # evicted just now
        ]

    def push(self, other: Cache) -> Copied:
        """Copy to another cache what it does not have."""
        _check_cache("push", other)
        there = {entry.key for entry in other.entries()}
        copied, failed = [], {}
        for entry in self.entries():
            if entry.key in there:
                continue
            found = self._look(entry.key)
            reason = found.reason if isinstance(found, Miss) else other._store(entry.key, found.data)
            if reason is None:
                copied.append(entry.key)
            else:
                failed[entry.key] = reason
        return Copied(copied, failed)

    def pull(self, other: Cache) -> Copied:
        """Copy from another cache what this one does not have."""
        _check_cache("pull", other)
        return other.push(self)

    def _look(self, key: str) -> Hit | Miss:
        check_key(key)
        reasons = []
        for number, layer in enumerate(self._layers):
            found = layer.get(key)
            if isinstance(found, Hit):
                for nearer in self._layers[:number]:
                    nearer.put(key, found.data)
                return found
            if found.reason != NOT_THERE:
                reasons.append(f"{found.reason} ({layer.name})")
        if not self._layers:
            return Miss("there is no cache")
        return Miss("; ".join(reasons) or NOT_THERE)

    def _store(self, key: str, data: bytes) -> str | None:
        """Why a layer does not have the entry now, None if all have."""
        check_key(key)
        return self._reasons(lambda layer: layer.put(key, data))

    def _reasons(self, change: Callable[[FailingLayer], str | None]) -> str | None:
        """Why layers did not do something, None if all did."""
        return "; ".join(f"{reason} ({layer.name})" for layer in self._layers if (reason := change(layer))) or None

    def _count(self, found: Hit | Miss) -> None:
        name = "hit" if isinstance(found, Hit) else f"miss {found.kind}"
        with self._lock:
            self._counts[name] += 1
        for folder in self._folders(writable=True):
            if folder.is_private:
                folder.count(name)

    def _folders(self, writable: bool = False) -> list[Folder]:
        layers = [layer for layer in self._layers if not (writable and layer.is_readonly)]
        return [layer.layer for layer in layers if isinstance(layer.layer, Folder)]


def _cache_of(parts: list[str | Cache], options: dict[str, Any]) -> Cache:
    return Cache(parts, **options)


def named_rate() -> int | None:
    """What `FOREGRAD_CACHE_VERIFY` says: one in how many calls that are found is captured all the same."""
    named = CACHE_VERIFY.value or None
    if named is not None and not (named.isdecimal() and int(named)):
        raise ValueError(f"{CACHE_VERIFY.name} is a number, 1 or more, not {named!r}")
    return None if named is None else int(named)


def default_cache() -> Cache:
    """The cache that is used when none is named. If its folder cannot be used: one warning, and nothing is kept."""
    try:
        return _cache_in(programs_folder())
    except (OSError, RuntimeError) as error:  # RuntimeError: this user has no home
        return _no_cache(str(error))


@cache
def _cache_in(folder: Path) -> Cache:
    return Cache(folder)


@cache
def _no_cache(reason: str) -> Cache:
    log.warning(reason)
    return Cache([])


def _layer(place: Place, key: GivenKey, max_bytes: int, max_entry_bytes: int, readonly: bool) -> FailingLayer:
    """The layer that a path or URL stands for."""
    text = os.fspath(place)
    if "://" not in text:
        return FailingLayer(Folder(Path(text).expanduser().absolute(), PLAIN, max_bytes, max_entry_bytes), readonly)
    return _remote(text, key, max_bytes, max_entry_bytes, readonly)


def _remote(text: str, key: GivenKey, max_bytes: int, max_entry_bytes: int, readonly: bool) -> FailingLayer:
    from foregrad.cache.format.keys import PublicKey
    from foregrad.cache.store.redis_layer import RedisLayer
    from foregrad.cache.store.url_layer import UrlLayer

    name = without_password(text)
    signer = _signer(key)
    if signer is None:
        raise ValueError(
            f"{name} is written by others too: give fg.Cache(..., key=...) a key that all of them have, "
            "or set FOREGRAD_CACHE_KEY. Entries are signed with it, and used only if they are."
        )
    seal = Seal(signer)
    readonly = readonly or isinstance(signer, PublicKey)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return FailingLayer(Folder(Path(unquote(parts.path)), seal, max_bytes, max_entry_bytes), readonly)
    kind = RedisLayer if parts.scheme in ("redis", "rediss", "unix") else UrlLayer
    return FailingLayer(kind(text, name, seal, max_entry_bytes), readonly)


def without_password(url: str) -> str:
    return re.sub(r"(?<=://)[^/@]*@|\?.*", "", url)


def _signer(key: GivenKey) -> Key | None:
    from foregrad.cache.format.keys import SharedKey, key_from_environment, parse_key

    match key:
        case None:
            return key_from_environment()
        case str():
            return parse_key(key, "fg.Cache(key=...)")
        case bytes():
            return SharedKey(key)
    return key


def _check_cache(name: str, other: Any) -> None:
    if not isinstance(other, Cache):
        raise TypeError(
            f"{name} takes another cache, such as fg.Cache({str(other)!r:.80}), not a {type(other).__name__}"
        )


def _counts(found: Counter[str]) -> Counts:
    misses = {name.removeprefix("miss "): number for name, number in found.items() if name.startswith("miss ")}
    return Counts(found["hit"], misses)
