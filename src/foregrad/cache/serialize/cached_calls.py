"""Cached calls: what a compiled function looks for in a cache before it captures, and what it leaves there.

A *call* is a whole captured call, under the key of the sources that it would be captured from: it is used with no
capture at all. `programs.py` has the other kind of entries, which are looked for after a capture.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from foregrad.backends.backend import Backend
from foregrad.backends.compiling import compiles
from foregrad.cache.format.container import Entry, pack, unpack
from foregrad.cache.key.ingredients import Key
from foregrad.cache.key.sources import Sources
from foregrad.cache.serialize.calls import KeptCalls, keep_calls, restorer_of, without_module_checks
from foregrad.cache.serialize.requirements import foregrad_version, needs
from foregrad.cache.serialize.restore import as_described
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.cache.store.cache import Cache, default_cache
from foregrad.cache.store.layer import Miss
from foregrad.cache.store.option_checks import check_place, named_place
from foregrad.core.errors import CannotKeep, ForegradError
from foregrad.core.generated import generated_of
from foregrad.core.spec import Spec
from foregrad.process.progress import TimedPart, Timings, log, part

if TYPE_CHECKING:
    from foregrad.regions.regions import Regions
    from foregrad.runtime.compiled_stage import CompiledStage


@dataclass(frozen=True)
class CaptureOrigin:
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
        return default_cache() if compiles(backend) and named != "off" else None
    if given is False or given is None:
        return None
    if isinstance(given, Cache):
        return given
    check_place(given)
    return _cache_at(os.fspath(given))


@cache
def _cache_at(place: str) -> Cache:
    return Cache(place)


CAPTURED, TRACED, FOUND = "captured", "traced, then found", "found without tracing"
NO_ENTRY = "no entry of these sources"


def in_doubt(sources: Sources) -> CaptureOrigin | None:
    """Why a call must be captured, where its sources do not say everything."""
    if sources.is_sure:
        return None
    return CaptureOrigin(CAPTURED, reasons=tuple(f"the sources do not say everything: {why}" for why in sources.unsure))


_PROGRAM_KEY = "program-key.json"


@dataclass(frozen=True)
class FoundCall:
    """A call that was captured by an earlier process."""

    call: Callable[..., Any]
    entry: Entry
    origin: CaptureOrigin
    restore: Callable[[Any], Any]

    @property
    def about(self) -> dict[str, Any]:
        return self.entry.about

    @property
    def program_key(self) -> Key:
        """The key of the program that the call runs."""
        return Key.from_json(json.loads(bytes(self.entry.blob(_PROGRAM_KEY))))

    @property
    def regions(self) -> tuple[Regions, ...]:
        """What its halves were cut into."""
        return tuple(self.restore(root).regions for root in self.about["halves"])

    @property
    def timings(self) -> Timings:
        return Timings([TimedPart(*p) for p in self.about["timings"]])


def find_call(
    store: Cache, key: str, places: StatePlaces, record: Callable[[], CompiledStage]
) -> FoundCall | CaptureOrigin:
    """The call with the key of its sources, or why it must be captured."""
    found = store.get(key)
    if isinstance(found, Miss):
        return CaptureOrigin(CAPTURED, reasons=(f"{NO_ENTRY}: {found.reason}",), key=key)
    try:
        with part("load"):
            entry = unpack(found.data)
            with as_described("a call"):
                restore = restorer_of(entry.blob, places, record)
                return FoundCall(
                    restore(entry.about["call"]), entry, CaptureOrigin(FOUND, found.source, key=key), restore
                )
    except (ForegradError, OSError) as error:
        return CaptureOrigin(CAPTURED, reasons=(f"the entry in {found.source} cannot be used: {error}",), key=key)


def keep_call(
    store: Cache,
    sources: Sources,
    places: StatePlaces,
    calls: list[Callable[..., Any]],
    program: Key,
    about: dict[str, Any],
) -> str | None:
    """Keep a call, and the halves that it runs, for later processes, with the key of its program; why not, if it cannot
    be kept."""
    from foregrad.runtime.fallback_warnings import check_compiled

    if not sources.is_sure:
        return None
    try:
        with part("keep"):
            _check_finds_all(calls[0], places)
            check_compiled(calls[1:])
            kept = _kept(calls, places)
            header = {**about_entry("call", sources.key), **about, "call": kept.roots[0], "halves": kept.roots[1:]}
            blobs = {**kept.blobs, _PROGRAM_KEY: json.dumps(program.as_json()).encode()}
            store.put(sources.key.digest, pack(header, blobs))
    except (CannotKeep, OSError) as error:
        log.info("a call is not kept: %s", error)
        return f"it cannot be kept: {error}"
    return None


def _kept(calls: list[Callable[..., Any]], places: StatePlaces) -> KeptCalls:
    """The call as a file could have it too; else as only processes with its sources can."""
    try:
        return keep_calls(calls, places, needs_code=True)
    except CannotKeep:
        return keep_calls([without_module_checks(calls[0], places), *calls[1:]], places, needs_code=True)


def _check_finds_all(call: Callable[..., Any], places: StatePlaces) -> None:
    """Refuse a call that holds something which may change: a later process has another one, with other contents."""
    from foregrad.record.lift.locate import OWNER

    found = generated_of(call)
    assert found is not None
    for name, value in found.namespace.items():
        if (isinstance(value, torch.Tensor) or name.startswith(OWNER)) and places.of(value) is None:
            what = f"a tensor {Spec.of(value)}" if isinstance(value, torch.Tensor) else _parts_read(found.text, name)
            raise CannotKeep(
                f"it reads {what}, kept in none of the function's own variables, its modules, their hooks and "
                "its declared state, so that no other process could find it"
            )


def _parts_read(text: str, owner: str) -> str:
    """What a call reads of something, by its names there: `weight`, `bias`."""
    parts: list[Any] = []
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(holder, ast.Constant(key)) | ast.Call(ast.Attribute(holder, "get"), [ast.Constant(key)]):
                table = holder.value if isinstance(holder, ast.Attribute) else holder  # such as `_parameters`
                parts += [key] if isinstance(table, ast.Name) and table.id == owner else []
    return ", ".join(f"`{part}`" for part in dict.fromkeys(parts)) or "something"


def about_entry(kind: str, key: Key) -> dict[str, Any]:
    """What the header of every entry of a cache begins with."""
    created = datetime.now(UTC).isoformat(timespec="seconds")
    return {
        "kind": kind,
        "needs": needs(has_code=True),
        "provenance": {"foregrad": foregrad_version(), "created": created},
        "ingredients": [{"name": i.name, "digest": i.digest, "description": i.description} for i in key.ingredients],
    }
