"""Redis: entries on a Redis server, each a string with a signed seal before its content.

    foregrad:v1:3f0c…          an entry
    foregrad:v1:3f0c…:lease    who works on it, signed; goes by itself if it is not renewed

What the server keeps and for how long is the server's business: see `maxmemory` and `maxmemory-policy` there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import InitVar, dataclass, field
from typing import Any

from foregrad.cache.store.claim import LEASE_SECONDS
from foregrad.cache.store.layer import (
    NOT_THERE,
    Hit,
    LeaseHolder,
    ListedEntry,
    Miss,
    NotOurs,
    Unreachable,
    check_key,
    is_key,
    too_large,
)
from foregrad.cache.store.seal import Seal
from foregrad.process.folders import VERSION

#: What a string of Redis can hold.
_LARGEST = 512 * 2**20
_LONGEST_LEASE = 1024

_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end"
_RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end"


@dataclass
class RedisLayer:
    """A Redis server; `name` is its URL without the password."""

    url: InitVar[str]
    name: str
    seal: Seal
    max_entry_bytes: int
    prefix: str = f"foregrad:v{VERSION}:"
    _client: Any = field(init=False, repr=False)

    def __post_init__(self, url: str) -> None:
        self._client = _connect(url)

    def get(self, key: str) -> Hit | Miss:
        return self.read(key)

    def read(self, key: str) -> Hit | Miss:
        name = self._name(key)
        with self._server() as server:
            size = server.strlen(name)
            if size > self.max_entry_bytes:
                return Miss(f"too large: {size} bytes")
            # Not `get`: the value may be another one by now.
            raw = server.getrange(name, 0, self.max_entry_bytes - 1) if size else b""
        if not isinstance(raw, bytes):
            return Miss(f"unreadable: the server has sent a {type(raw).__name__}")
        if not raw:
            return Miss(NOT_THERE)
        data = raw[self.seal.size :]
        return self.seal.open(key, raw[: self.seal.size], data) or Hit(data, self.name)

    def peek(self, key: str, offset: int, length: int) -> bytes:
        begin = self.seal.size + offset
        with self._server() as server:
            return bytes(server.getrange(self._name(key), begin, begin + length - 1))

    def put(self, key: str, data: bytes) -> None:
        size = self.seal.size + len(data)
        if size > min(self.max_entry_bytes, _LARGEST):
            raise too_large(size)
        with self._server() as server:
            server.set(self._name(key), self.seal.of(key, data) + data)

    def delete(self, key: str) -> None:
        with self._server() as server:
            server.delete(self._name(key))

    def entries(self) -> Iterator[ListedEntry]:
        with self._server() as server:
            names = [name for name in server.scan_iter(match=f"{self.prefix}*", count=1000) if self._key(name)]
            asked = server.pipeline(transaction=False)
            for name in names:
                asked.strlen(name).object("idletime", name)
            answers = asked.execute(raise_on_error=False)
        for name, size, idle in zip(names, answers[::2], answers[1::2], strict=True):
            if isinstance(size, int):
                used = time.time() - idle if isinstance(idle, int) else None
                yield ListedEntry(self._key(name), size, used, self.name)

    def acquire(self, key: str, owner: str) -> LeaseHolder | None:
        name = self._name(key) + ":lease"
        with self._server() as server:
            if server.set(name, self.seal.lease(key, owner), nx=True, px=int(LEASE_SECONDS * 1000)):
                return None
            raw = server.getrange(name, 0, _LONGEST_LEASE)
            if not raw and not server.exists(name):
                return LeaseHolder("", time.monotonic())  # released just now
            holder = self.seal.owner_in(key, raw)
        if holder is None:
            raise NotOurs
        # The server counts the time of a lease, so whoever has one is alive as far as we know.
        return LeaseHolder(holder, time.monotonic())

    def renew(self, key: str, owner: str) -> None:
        with self._server() as server:
            lease = self.seal.lease(key, owner)
            server.eval(_RENEW, 1, self._name(key) + ":lease", lease, int(LEASE_SECONDS * 1000))

    def release(self, key: str, owner: str) -> None:
        with self._server() as server:
            server.eval(_RELEASE, 1, self._name(key) + ":lease", self.seal.lease(key, owner))

    def _name(self, key: str) -> str:
        return self.prefix + check_key(key)

    def _key(self, name: bytes) -> str:
        """The key of an entry's name; empty for other names."""
        key = name.decode("latin-1").removeprefix(self.prefix)
        return key if is_key(key) else ""

    @contextmanager
    def _server(self) -> Iterator[Any]:
        """The client; what it raises is an OSError here."""
        from redis import exceptions

        try:
            yield self._client
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            raise Unreachable(str(error)) from error
        except Exception as error:  # also those that an answer causes that makes no sense
            raise OSError(f"{type(error).__name__}: {error}") from error


def _connect(url: str) -> Any:
    """A client that gives up soon. The second try is for a connection that the server has closed in the meantime."""
    try:
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise ImportError("a cache on Redis needs its client: pip install 'foregrad[redis]'") from error
    return Redis.from_url(url, socket_connect_timeout=2, socket_timeout=10, retry=Retry(NoBackoff(), 1))
