"""Lookup: how a call is looked for in a cache, and under which key it is kept.

The key of the sources, which is made before anything runs, leads to the read sets of earlier captures. What is found by
the names of one of these, together with the sources, is the key of the call.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from foregrad.cache.key.ingredients import Key
from foregrad.cache.key.loaded_modules import note_loaded
from foregrad.cache.key.read_state import read_state
from foregrad.cache.key.sources import Sources
from foregrad.cache.serialize.read_sets import ReadSet, find_read_sets, ingredients_of, keep_read_set
from foregrad.cache.store.cache import Cache
from foregrad.record.python.executed_code import Reads


@dataclass(frozen=True)
class ReadCall:
    """A call by its sources and by what it reads."""

    sources: Sources
    read_set: ReadSet | None  # None where the sources leave something open, so that nothing is looked for

    @property
    def key(self) -> str:
        """Of the entry."""
        return self.sources.key.digest


@dataclass(frozen=True)
class Lookup:
    """A call that is looked for, for the second time where its sizes may be any. `_tried` are the read sets that led to
    no entry, or to one that was used."""

    store: Cache
    name: str
    sources: Sources
    target: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    state: tuple[Any, ...]
    is_second: bool = False
    _loaded: frozenset[str] = field(default_factory=lambda: frozenset(sys.modules))
    _listed: list[ReadSet] = field(default_factory=list)
    _tried: dict[ReadSet, ReadCall] = field(default_factory=dict)

    def candidates(self) -> Iterator[ReadCall] | str:
        """Keys under which the call may be found; why there are none, if so."""
        found = find_read_sets(self.store, self.sources.key, is_second=self.is_second)
        self._listed[:] = () if isinstance(found, str) else found
        return found if isinstance(found, str) else map(self._try, found)

    def captured(self, reads: Reads, answers: str) -> ReadCall:
        """The key of what was captured instead: with what was found by the same names before the capture, if somebody
        has looked."""
        note_loaded(self._loaded)
        if not self.sources.is_sure:
            return ReadCall(self.sources, None)
        wanted = ReadSet(reads, answers)
        return self._tried.get(wanted) or self._with(wanted, is_after_capture=True)

    def once_made(self) -> Lookup:
        """The same once the call is made, to keep what comes later: it holds on to nothing of the user's."""
        return replace(self, target=None, args=(), kwargs={}, state=())

    def keep(self, call: ReadCall) -> None:
        """Lead later processes to an entry."""
        if call.read_set is not None and call.sources.is_sure and call.read_set not in self._tried:
            keep_read_set(self.store, self.name, self.sources.key, call.read_set, self._listed)
            self._listed.insert(0, call.read_set)
            self._tried[call.read_set] = call

    def _try(self, one: ReadSet) -> ReadCall:
        self._tried[one] = self._with(one)
        return self._tried[one]

    def _with(self, one: ReadSet, *, is_after_capture: bool = False) -> ReadCall:
        read = read_state(
            self.target, self.args, self.kwargs, one.reads, state=self.state, is_after_capture=is_after_capture
        )
        ingredients = (*self.sources.key.ingredients, *ingredients_of(one), *read.key.ingredients)
        return ReadCall(Sources(Key(ingredients), (*self.sources.unsure, *read.unsure)), one)
