"""Read sets in a cache: by which names captures of the same sources have read, so that the next process looks there.

The key of the sources leads to them. Each, with what is found now by its names, makes the key of a call.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from foregrad.cache.format.container import pack, unpack
from foregrad.cache.key.ingredients import READ, Ingredient, Key
from foregrad.cache.serialize.cached_calls import about_entry
from foregrad.cache.store.cache import Cache
from foregrad.cache.store.layer import Miss
from foregrad.core.errors import CorruptArtifact, ForegradError
from foregrad.process.progress import log
from foregrad.record.python.executed_code import Reads

#: As many are kept for the same sources, the newest first: more than a function that asks the data has paths.
_MOST = 24

_BLOB = "reads.json"


@dataclass(frozen=True)
class ReadSet:
    """By which names a capture has read, and the digest of what it was told of the data; empty if it did not ask."""

    reads: Reads
    answers: str


def find_read_sets(store: Cache, sources: Key, *, is_second: bool = False) -> tuple[ReadSet, ...] | str:
    """What captures of these sources have read; why nothing is known, if so."""
    found = store.get_also(sources.digest) if is_second else store.get(sources.digest)
    if isinstance(found, Miss):
        return found.reason
    try:
        return tuple(map(_set_from_json, json.loads(bytes(unpack(found.data).blob(_BLOB)))))
    except (ForegradError, OSError, ValueError, KeyError, TypeError) as error:
        return f"the entry in {found.source} cannot be used: {error}"


def keep_read_set(store: Cache, name: str, sources: Key, new: ReadSet, known: Iterable[ReadSet]) -> None:
    """Put what a capture has read before what is known."""
    sets = (new, *(one for one in known if one != new))[:_MOST]
    about = {**about_entry("read sets", Key(())), "name": name}
    try:
        store.put(
            sources.digest,
            pack(
                about, {_BLOB: json.dumps([{**_as_json(one.reads), "answers": one.answers} for one in sets]).encode()}
            ),
        )
    except OSError as error:
        log.info("what a capture has read is not kept: %s", error)


def ingredients_of(one: ReadSet) -> tuple[Ingredient, ...]:
    """A read set as ingredients of the key of a call."""
    text = json.dumps(_as_json(one.reads))
    read = Ingredient.of(f"{READ}by name", text, f"{len(one.reads.executed)} functions ran")
    return (read, Ingredient.of("answers", one.answers, one.answers)) if one.answers else (read,)


_FLAGS = ("computed", "computed_in_libraries", "looks_around")
_SETS = ("names", "tables", "executed", "tested", "imported")


def _as_json(reads: Reads) -> dict[str, Any]:
    return {
        **{name: sorted(getattr(reads, name)) for name in _SETS},
        "globals": sorted([module, sorted(names)] for module, names in reads.globals),
        **{name: getattr(reads, name) for name in _FLAGS},
    }


def _set_from_json(data: Any) -> ReadSet:
    if not isinstance(data, dict):
        raise CorruptArtifact("a set of names has other fields")
    return ReadSet(_from_json({k: v for k, v in data.items() if k != "answers"}), str(data["answers"]))


def _from_json(data: Any) -> Reads:
    if not isinstance(data, dict) or {*data} != {*_SETS, *_FLAGS, "globals"}:
        raise CorruptArtifact("a set of names has other fields")
    fields: dict[str, Any] = {name: frozenset(map(str, data[name])) for name in _SETS}
    fields |= {name: bool(data[name]) for name in _FLAGS}
    return Reads(
        globals=tuple((str(module), frozenset(map(str, names))) for module, names in data["globals"]), **fields
    )
