"""Warm starts: what a compiled function looks for in a cache before it works, and what it leaves there.

Two kinds of entries, each under its own key. A *call* is a whole captured call, under the key of the sources that it
would be captured from: it is used with no capture at all. *Halves* are the compiled forward and backward of a program,
under the program's key: they are found after a capture, where the sources say too little or have changed without
effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import torch

from foregrad.backends.aoti import AOTI
from foregrad.backends.backend import Backend, Runner
from foregrad.backends.inductor import Inductor
from foregrad.entries.container import Entry, pack, unpack
from foregrad.errors import CannotKeep, ForegradError
from foregrad.keep.calls import keep_calls, restorer_of
from foregrad.keep.needs import foregrad_version, needs
from foregrad.keep.places import Places
from foregrad.keep.restore import as_described
from foregrad.keys.ingredients import Key
from foregrad.keys.program_key import program_key
from foregrad.keys.sources import Sources
from foregrad.program.program import Program
from foregrad.runtime.halves import CompiledStage, Way
from foregrad.runtime.locate import OWNER
from foregrad.store.cache import Cache, default_cache, named_place
from foregrad.store.layer import Hit, Miss
from foregrad.words.generated import generated_of
from foregrad.words.progress import Part, Timings, log, part
from foregrad.words.spec import Spec


@dataclass(frozen=True)
class Origin:
    """Where a captured call comes from, and why not from nearer: `captured`, `traced, then found`, or `found`."""

    how: str
    where: str = ""
    reasons: tuple[str, ...] = ()
    key: str | None = None  # of its entry

    @property
    def found(self) -> str:
        return f"{self.how} in {self.where}" if self.where else self.how

    def __str__(self) -> str:
        return "; ".join([self.found, *self.reasons])


def cache_for(given: bool | str | os.PathLike[str] | Cache | None, backend: Backend) -> Cache | None:
    """The cache that an option stands for. `True` is this user's, for backends that take long: op by op, a capture is
    as soon made as found. `FOREGRAD_CACHE=off` turns that one off; a path or URL there is used in its place, with any
    backend."""
    if given is True:
        named = named_place()
        if named and named != "off":
            return _cache_at(named)
        return default_cache() if isinstance(backend, (Inductor, AOTI)) and named != "off" else None
    if not given:
        return None
    return given if isinstance(given, Cache) else _cache_at(os.fspath(given))


@cache
def _cache_at(place: str) -> Cache:
    return Cache(place)


CAPTURED, TRACED, FOUND = "captured", "traced, then found", "found without tracing"
NO_ENTRY = "no entry of these sources"

_PROGRAM_KEY = "program-key.json"


@dataclass(frozen=True)
class FoundCall:
    """A call that was captured by an earlier process."""

    call: Callable[..., Any]
    entry: Entry
    origin: Origin

    @property
    def about(self) -> dict[str, Any]:
        return self.entry.about

    @property
    def program_key(self) -> Key:
        """The key of the program that the call runs."""
        return Key.from_json(json.loads(bytes(self.entry.blob(_PROGRAM_KEY))))

    @property
    def timings(self) -> Timings:
        return Timings([Part(*p) for p in self.about["timings"]])


def find_call(store: Cache, key: str, places: Places, record: Callable[[], CompiledStage]) -> FoundCall | Origin:
    """The call with the key of its sources, or why it must be captured."""
    found = store.get(key)
    if isinstance(found, Miss):
        return Origin(CAPTURED, reasons=(f"{NO_ENTRY}: {found.reason}",), key=key)
    try:
        with part("load"):
            entry = unpack(found.data)
            with as_described("a call"):
                call = restorer_of(entry.blob, places, record)(entry.about["call"])
                return FoundCall(call, entry, Origin(FOUND, found.source, key=key))
    except (ForegradError, OSError) as error:
        return Origin(CAPTURED, reasons=(f"the entry in {found.source} cannot be used: {error}",), key=key)


def keep_call(
    store: Cache, sources: Sources, places: Places, call: Callable[..., Any], program: Key, about: dict[str, Any]
) -> str | None:
    """Keep a call for later processes, with the key of its program; why not, if it cannot be kept."""
    if not sources.is_sure:
        return None
    try:
        with part("keep"):
            _check_finds_all(call, places)
            kept = keep_calls([call], places, needs_code=True)
            header = {**_common("call", sources.key), **about, "call": kept.roots[0]}
            blobs = {**kept.blobs, _PROGRAM_KEY: json.dumps(program.as_json()).encode()}
            store.put(sources.key.digest, pack(header, blobs))
    except (CannotKeep, OSError) as error:
        log.info("a call is not kept: %s", error)
        return f"it cannot be kept: {error}"
    return None


def _check_finds_all(call: Callable[..., Any], places: Places) -> None:
    """Refuse a call that holds something which may change: a later process has another one, with other contents."""
    found = generated_of(call)
    assert found is not None
    for name, value in found.namespace.items():
        if (isinstance(value, torch.Tensor) or name.startswith(OWNER)) and places.of(value) is None:
            what = f"a tensor {Spec.of(value)}" if isinstance(value, torch.Tensor) else "something"
            raise CannotKeep(
                f"it reads {what} that is kept in none of the function's own variables, its modules and its declared "
                "state, so that no other process could find it"
            )


@dataclass(frozen=True)
class Halves:
    """The compiled halves of a program, if an earlier process has left them, and how to leave them."""

    forward: Runner | None
    backward: Runner | None
    key: Key | None
    origin: Origin
    keep: Callable[[CompiledStage], None] = lambda stage: None


@contextmanager
def claimed_halves(store: Cache | None, program: Program, way: Way, before: Origin) -> Iterator[Halves]:
    """The halves of a program. While one process makes them, others that want the same wait for it."""
    if store is None:
        yield Halves(None, None, None, before)
        return
    with part("look for a program"):
        key = program_key(program, way)
    ours = Halves(None, None, key, before, lambda stage: _keep_halves(store, key, program, stage))
    for _ in range(2):  # an entry that cannot be used is removed, and then there is none
        with store.claim(key.digest) as claim:
            if claim.found is None:
                yield ours
                return
            found = _restored(claim.found)
            if found is not None:
                origin = Origin(TRACED, claim.found.source, before.reasons, before.key)
                yield Halves(*found, key, origin)
                return
            store.delete(key.digest)
    yield ours


def _restored(hit: Hit) -> tuple[Runner, Runner | None] | None:
    try:
        with part("load"):
            entry = unpack(hit.data)
            with as_described("a program"):
                forward, backward = map(restorer_of(entry.blob, Places((), None)), entry.about["halves"])
    except (ForegradError, OSError) as error:
        log.info("the entry in %s cannot be used: %s", hit.source, error)
        return None
    return forward, backward


def _keep_halves(store: Cache, key: Key, program: Program, stage: CompiledStage) -> None:
    usual = stage.usual_backward()
    try:
        with part("keep"):
            runners: list[Any] = [stage.run_forward, usual.run if usual is not None else None]
            kept = keep_calls(runners, Places((), None), needs_code=True)
            about = {**_common("halves", key), "name": program.name, "program": str(program), "halves": kept.roots}
            store.put(key.digest, pack(about, kept.blobs))
    except (CannotKeep, OSError) as error:
        log.info("a program is not kept: %s", error)


def _common(kind: str, key: Key) -> dict[str, Any]:
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "kind": kind,
        "needs": needs(has_code=True),
        "provenance": {"foregrad": foregrad_version(), "created": created},
        "ingredients": [{"name": i.name, "digest": i.digest, "description": i.description} for i in key.ingredients],
    }
