"""Keys: what a cached program depends on, as named ingredients, and in what two keys differ.

torch                  2.13.0+cpu
function net.forward   def forward(self, x): ...
global net.SCALE       2.0
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

#: Lines of a text that a difference shows.
_MOST_LINES = 12


@dataclass(frozen=True)
class Ingredient:
    """One thing that a program depends on: its name, what it is known by, and what people see of it."""

    name: str
    digest: str
    description: str

    @classmethod
    def of(cls, name: str, text: str, description: str | None = None) -> Ingredient:
        """An ingredient that a text says in full."""
        return cls(name, hashlib.sha256(text.encode()).hexdigest(), text if description is None else description)


@dataclass(frozen=True)
class Key:
    """Everything that a program depends on."""

    ingredients: tuple[Ingredient, ...]

    @cached_property
    def digest(self) -> str:
        """Hex digits that stand for all ingredients, whatever their order."""
        pairs = sorted((one.name, one.digest) for one in self.ingredients)
        return hashlib.sha256(repr(pairs).encode()).hexdigest()

    @cached_property
    def by_name(self) -> Mapping[str, Ingredient]:
        return {one.name: one for one in self.ingredients}

    def as_json(self) -> list[list[str]]:
        """Plain data, for the header of an entry."""
        return [[one.name, one.digest, one.description] for one in self.ingredients]

    @classmethod
    def from_json(cls, data: Any) -> Key:
        return cls(tuple(Ingredient(str(name), str(digest), str(text)) for name, digest, text in data))


@dataclass(frozen=True)
class Difference:
    """An ingredient that is not the same in two keys; None where a key does not have it."""

    name: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old is None:
            return f"{self.name} is new: {_first_line(self.new or '')}"
        if self.new is None:
            return f"{self.name} is gone: {_first_line(self.old)}"
        if self.old == self.new:
            return f"{self.name} differs in what is not shown: {_first_line(self.old)}"
        if "\n" not in self.old + self.new:
            return f"{self.name}: {self.old} -> {self.new}"
        return "\n".join([f"{self.name} differs:", *(f"  {line}" for line in _changed_lines(self.old, self.new))])


def differences(old: Key, new: Key) -> list[Difference]:
    """What differs between two keys: in the order of the new one, then what only the old one has. What was read counts
    where the sources are the same: else it says the same once more."""
    names = [*(one.name for one in new.ingredients), *(n for n in old.by_name if n not in new.by_name)]
    pairs = [(name, old.by_name.get(name), new.by_name.get(name)) for name in names]
    found = [
        Difference(name, before.description if before else None, after.description if after else None)
        for name, before, after in pairs
        if before is None or after is None or before.digest != after.digest
    ]
    return [one for one in found if not one.name.startswith(READ)] or found


#: How the names of ingredients begin that say what a capture has read.
READ = "read "


def nearest(key: Key, others: Iterable[Key]) -> Key | None:
    """The key that differs in the fewest ingredients."""
    return min(others, key=lambda other: len(differences(other, key)), default=None)


def _first_line(text: str) -> str:
    lines = text.splitlines() or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} ..."


def _changed_lines(old: str, new: str) -> list[str]:
    """The lines that differ, with one line around them, and no more than fit on a screen."""
    lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), lineterm="", n=1))[2:]
    rest = len(lines) - _MOST_LINES
    return lines if rest <= 0 else [*lines[:_MOST_LINES], f"... and {rest} more lines"]
