"""Programs in a cache: the compiled forward and backward of a program, under the program's key.

They are found after a capture, where the sources say too little or have changed without effect.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from foregrad.backends.backend import Runner
from foregrad.cache.format.container import pack, unpack
from foregrad.cache.key.ingredients import Key
from foregrad.cache.key.program_key import program_key
from foregrad.cache.serialize.cached_calls import CAPTURED, TRACED, CaptureOrigin, about_entry
from foregrad.cache.serialize.calls import keep_calls, restorer_of
from foregrad.cache.serialize.restore import as_described
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.cache.store.cache import Cache
from foregrad.cache.store.layer import Hit
from foregrad.core.errors import CannotKeep, ForegradError
from foregrad.process.progress import log, part
from foregrad.program.program import Program
from foregrad.runtime.fallback_warnings import check_compiled
from foregrad.runtime.options import Known, Options


@dataclass(frozen=True)
class CompiledHalves(Known):
    """The compiled halves of a program, and where they come from."""

    key: Key | None = None
    origin: CaptureOrigin = field(default_factory=lambda: CaptureOrigin(CAPTURED))


@contextmanager
def claimed_halves(
    store: Cache | None, program: Program, options: Options, before: CaptureOrigin, *, has_sizes: bool = False
) -> Iterator[CompiledHalves]:
    """The halves of a program. While one process makes them, others that want the same wait for it. Where it has sizes
    that vary, what a compiler assumes about them is known only to whole calls, of which the halves are a part."""
    if store is None:
        yield CompiledHalves(origin=before)
        return
    with part("look for a program"):
        key = program_key(program, options)
    if has_sizes:
        yield CompiledHalves(key=key, origin=before)
        return
    ours = CompiledHalves(keep=partial(_keep_halves, store, key, program, (None, None)), key=key, origin=before)
    for _ in range(2):  # an entry that cannot be used is removed, and then there is none
        with store.claim(key.digest, _patience(program)) as claim:
            if claim.found is None:
                yield ours
                return
            found = _restored(claim.found)
            if found is not None:
                origin = CaptureOrigin(TRACED, claim.found.source, before.reasons, before.key)
                yield CompiledHalves(*found, partial(_keep_halves, store, key, program, found), key, origin)
                return
            store.delete(key.digest)
    yield ours


#: Seconds that a build may take, and more for each node: some five times what it takes where nothing else runs.
_LEAST_SECONDS, _SECONDS_FOR_A_NODE, _MOST_SECONDS = 30.0, 0.05, 600.0


def _patience(program: Program) -> float:
    """How long to wait for another process that builds a program: about as long as we would need at worst. By then we
    could have built it, and whoever is still at it may never end."""
    return min(_MOST_SECONDS, _LEAST_SECONDS + _SECONDS_FOR_A_NODE * len(program.graph.graph.nodes))


def _restored(hit: Hit) -> tuple[Runner | None, Runner | None] | None:
    try:
        with part("load"):
            entry = unpack(hit.data)
            with as_described("a program"):
                forward, backward = map(restorer_of(entry.blob, StatePlaces((), None)), entry.about["halves"])
    except (ForegradError, OSError) as error:
        log.info("the entry in %s cannot be used: %s", hit.source, error)
        return None
    return forward, backward


def _keep_halves(
    store: Cache, key: Key, program: Program, found: Any, forward: Runner | None, backward: Runner | None
) -> None:
    """Keep halves, if there is more than was found."""
    runners: list[Any] = [forward, backward]
    if runners == list(found):
        return
    try:
        with part("keep"):
            check_compiled(runners)
            kept = keep_calls(runners, StatePlaces((), None), needs_code=True)
            about = {**about_entry("halves", key), "name": program.name, "program": str(program), "halves": kept.roots}
            store.put(key.digest, pack(about, kept.blobs))
    except (CannotKeep, OSError) as error:
        log.info("a program is not kept: %s", error)
