"""A layer that may fail. Its failures are misses with a reason and lines of the log, never errors of the caller.

A server that does not answer is left alone for a while: training does not wait for it at each entry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from foregrad.cache.store.layer import Hit, Layer, LeaseHolder, Leases, Miss, Unreachable

log = logging.getLogger("foregrad")

#: How long a server that did not answer is left alone.
_REST_SECONDS = 30.0

T = TypeVar("T")


@dataclass
class FailingLayer:
    """A layer of a cache, and how it is doing."""

    layer: Layer
    is_readonly: bool
    _rests_until: float = 0.0
    _said: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def has_leases(self) -> bool:
        return isinstance(self.layer, Leases) and not self.is_readonly

    def get(self, key: str) -> Hit | Miss:
        try:
            return self._ask(lambda: self.layer.read(key) if self.is_readonly else self.layer.get(key))
        except Unreachable as error:
            return Miss(f"unreachable: {error}")
        except OSError as error:
            return Miss(f"unreadable: {error}")

    def put(self, key: str, data: bytes) -> str | None:
        """Why the entry was not written, None if it was."""
        return self._change(lambda: self.layer.put(key, data), "an entry was not written to")

    def delete(self, key: str) -> str | None:
        """Why the entry was not removed, None if it was."""
        return self._change(lambda: self.layer.delete(key), "an entry was not removed from")

    def acquire(self, key: str, owner: str) -> LeaseHolder | None:
        return self._ask(lambda: self._leases.acquire(key, owner))

    def renew(self, key: str, owner: str) -> None:
        self._ask(lambda: self._leases.renew(key, owner))

    def release(self, key: str, owner: str) -> None:
        self._ask(lambda: self._leases.release(key, owner))

    @property
    def _leases(self) -> Leases:
        if not isinstance(self.layer, Leases):
            raise TypeError(f"{self.name} has no leases")
        return self.layer

    def _change(self, do: Callable[[], None], failure: str) -> str | None:
        if self.is_readonly:
            return "it is only read"
        try:
            self._ask(do)
        except Unreachable as error:
            return str(error)
        except OSError as error:
            reason = error.strerror or str(error)
            self._say(failure + reason, f"{failure} the cache {self.name}: {reason}")
            return reason
        return None

    def _ask(self, do: Callable[[], T]) -> T:
        if (wait := self._rests_until - time.monotonic()) > 0:
            raise Unreachable(f"it did not answer, and is asked again in {wait:.0f} s")
        try:
            answer = do()
        except Unreachable as error:
            self._rests_until = time.monotonic() + _REST_SECONDS
            self._say("unreachable", f"the cache {self.name} does not answer, and is left alone for a while: {error}")
            raise
        self._said.discard("unreachable")
        return answer

    def _say(self, topic: str, text: str) -> None:
        """Once for each topic: a full disk stays full for a while."""
        if topic not in self._said:
            self._said.add(topic)
            log.warning(text)
