"""Catalog: what a cache holds, as the headers of its entries say, and in what two of them differ.

Only headers are read, and nothing of an entry is run. Nobody has checked who wrote them: they are for people to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from foregrad.cache.format import header as head
from foregrad.cache.format.header import DEFAULT_LIMITS
from foregrad.cache.key.ingredients import Difference, Ingredient, Key, differences, nearest
from foregrad.cache.store.cache import Cache
from foregrad.cache.store.layer import ListedEntry
from foregrad.core.errors import CorruptArtifact


@dataclass(frozen=True)
class CatalogEntry:
    """An entry, and what its header says; `problem` is why that cannot be read."""

    entry: ListedEntry
    about: dict[str, Any] = field(default_factory=dict)
    problem: str | None = None

    @property
    def key(self) -> str:
        return self.entry.key

    @property
    def kind(self) -> str:
        return str(self.about.get("kind", ""))

    @property
    def name(self) -> str:
        return str(self.about.get("name", ""))

    @property
    def created(self) -> str:
        return _text(self.about, "provenance", "created")

    @property
    def torch(self) -> str:
        return _text(self.about, "needs", "torch")

    @property
    def origin(self) -> str:
        """What was said when it was made: how, and why not otherwise."""
        origin = self.about.get("origin")
        reasons = origin.get("reasons") if isinstance(origin, dict) else None
        said = [_text(self.about, "origin", "how"), *(reasons if isinstance(reasons, list) else [])]
        return "; ".join(str(part) for part in said if part)

    @cached_property
    def ingredients(self) -> Key:
        rows = self.about.get("ingredients")
        rows = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
        return Key(tuple(Ingredient(*(str(row.get(part, "")) for part in _PARTS)) for row in rows))

    def as_json(self) -> dict[str, Any]:
        return {
            **{name: getattr(self.entry, name) for name in ("key", "size", "used", "source")},
            **{name: getattr(self, name) for name in ("kind", "name", "created", "torch", "origin", "problem")},
        }


_PARTS = ("name", "digest", "description")


@dataclass(frozen=True)
class Comparison:
    """An entry beside an older one: the ingredients that differ; without an older one there are none."""

    new: CatalogEntry
    old: CatalogEntry | None
    differences: tuple[Difference, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "new": self.new.as_json(),
            "old": self.old.as_json() if self.old else None,
            "differences": [vars(one) for one in self.differences],
        }


def catalog(cache: Cache, *, near: bool = False) -> list[CatalogEntry]:
    """All entries of a cache, those that were used last first; with `near` no server is asked if there is a folder."""
    return [_describe(cache, entry) for entry in cache.entries(near=near)]


def by_prefix(kept: Iterable[CatalogEntry], prefix: str) -> CatalogEntry:
    """The entry whose key begins so; LookupError if there is none, or more than one."""
    found = [one for one in kept if one.key.startswith(prefix.lower())]
    if len(found) == 1:
        return found[0]
    if not found:
        raise LookupError(f"no entry has a key that begins with {prefix}")
    raise LookupError(f"{len(found)} entries have keys that begin with {prefix}: {', '.join(k.key for k in found[:5])}")


def newest_call(kept: Iterable[CatalogEntry]) -> CatalogEntry:
    """The call that was captured last."""
    calls = [one for one in kept if one.kind == "call"]
    if not calls:
        raise LookupError("there is no call in this cache")
    return max(calls, key=lambda one: (one.created, one.entry.used or 0.0))


def compare(new: CatalogEntry, old: CatalogEntry | None) -> Comparison:
    return Comparison(new, old, tuple(differences(old.ingredients, new.ingredients)) if old else ())


def nearest_to(key: Key, kind: str, name: str, others: Iterable[CatalogEntry]) -> CatalogEntry | None:
    """The entry of that kind and name which differs from a key in the fewest ingredients."""
    alike = [one for one in others if one.kind == kind and one.name == name and one.key != key.digest]
    found = nearest(key, [one.ingredients for one in alike])
    return next((one for one in alike if one.ingredients is found), None)


@dataclass(frozen=True)
class _Peeked:
    """The bytes of an entry where it is kept."""

    cache: Cache
    entry: ListedEntry

    @property
    def where(self) -> str:
        return f"{self.entry.key[:12]} in {self.entry.source}"

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(self.cache.peek(self.entry, offset, length))


def _describe(cache: Cache, entry: ListedEntry) -> CatalogEntry:
    try:
        return CatalogEntry(entry, head.read(_Peeked(cache, entry), None, DEFAULT_LIMITS).about)
    except CorruptArtifact as error:
        return CatalogEntry(entry, problem=f"damaged: {error}")
    except OSError as error:
        return CatalogEntry(entry, problem=f"unreadable: {error}")


def _text(about: dict[str, Any], *path: str) -> str:
    """What stands at a path in a header, where anything may stand."""
    value: Any = about
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return "" if value is None else str(value)
