"""Walk: from a value to everything that can be reached from it, as texts that say the same in every process.

Each kind of value has a function that gives its text; what is worth a name of its own becomes an ingredient. An object
that is reached twice is told once: the second time, by the place where it was first.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from foregrad.cache.key.ingredients import Ingredient
from foregrad.cache.key.libraries import library_of_class

Shower = Callable[["KeyWalk", Any, str], str]

#: Values that their `repr` says in full.
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...), range, torch.dtype, torch.layout})
_LONG = 400

#: Classes of which even libraries make others that hold more.
_PARTIAL = (np.ndarray,)


@dataclass(frozen=True)
class Showers:
    """How values of each kind are told: those without an identity, and those whose identity matters."""

    values: dict[type, Shower]
    objects: dict[type, Shower]
    kind: Callable[[KeyWalk, type], str]  # the class of a value that exists already
    whole: frozenset[type]  # kinds whose functions tell all of a value of a class made from them, too
    _found: dict[type, tuple[Shower, bool, bool]] = field(default_factory=dict)
    _of_users: WeakKeyDictionary[type, tuple[Shower, bool, bool]] = field(default_factory=WeakKeyDictionary)

    def of(self, kind: type) -> tuple[Shower, bool, bool]:
        """The function for a kind of value, whether it is an object, and whether the function tells all of it."""
        found = self._found.get(kind) or self._of_users.get(kind)
        if found is None:
            found = next(self._candidates(kind))
            known = self._found if library_of_class(kind) is not None else self._of_users
            known[kind] = found
        return found

    def _candidates(self, kind: type) -> Iterator[tuple[Shower, bool, bool]]:
        for cls in kind.__mro__:
            is_whole = cls is kind or cls in self.whole or (library_of_class(kind) is not None and cls not in _PARTIAL)
            if cls in self.values:
                yield self.values[cls], False, is_whole
            elif cls in self.objects:
                yield self.objects[cls], True, is_whole


class KeyWalk:
    """What was found so far: ingredients, doubts, and what is still to be looked at."""

    def __init__(
        self,
        showers: Showers,
        declared: tuple[Any, ...] = (),
        prefix: str = "",
        of_any_size: frozenset[int] = frozenset(),
    ) -> None:
        self.showers = showers
        self.of_any_size = of_any_size  # ids of tensors, of which a size larger than one does not matter
        self.declared = {id(one) for one in declared}  # state whose numbers are read at each call
        self.prefix = prefix
        self.ingredients: dict[str, Ingredient] = {}
        self.doubts: dict[str, None] = {}
        self.libraries: dict[str, str] = {}
        self.names: set[str] = set()  # that code asks of things
        self.is_dynamic = False  # some code computes the names which it asks for
        self.dormant: deque[tuple[str, Callable[[], object]]] = deque()  # what runs only if code asks for its name
        self.queue: deque[Callable[[], object]] = deque()
        self.owner = ""  # the function that is being looked at
        self.storages: dict[int, tuple[Any, str]] = {}  # memory of tensors: one that lies there, and its place
        self._seen: dict[int, tuple[Any, str]] = {}
        self._names: dict[str, list[Any]] = {}
        self._devices: dict[str, dict[int | None, int]] = {}

    # -- values ---------------------------------------------------------------------------------------------

    def show(self, value: Any, place: str) -> str:
        """A value as text; `place` is where it is kept."""
        kind = type(value)
        if kind in _PLAIN:
            return repr(value) if kind is not str or len(value) < _LONG else self.long(value.encode(), "str")
        shower, is_object, is_whole = self.showers.of(kind)
        if not is_whole:
            self.doubt(f"{place} is a {kind.__qualname__}, made from a class in which the key cannot look")
        if is_object:
            known = self.first_place(value)
            if known is not None:
                return f"same as {known}"
            self.meet(value, place)
        return shower(self, value, place)

    def kind(self, cls: type) -> str:
        """The class of a value that exists already: code need not be able to make another."""
        return self.showers.kind(self, cls)

    def meet(self, value: Any, place: str) -> None:
        """Take note of where an object is kept. It is kept alive, so that its id stays its own."""
        self._seen[id(value)] = (value, place)

    def first_place(self, value: Any) -> str | None:
        """Where an object was met before."""
        return self.place_of_id(id(value))

    def place_of_id(self, number: int) -> str | None:
        known = self._seen.get(number)
        return known[1] if known is not None else None

    def long(self, data: bytes, kind: str) -> str:
        """Data that are too long to be shown."""
        return f"<{kind} of {len(data)} bytes {hashlib.sha256(data).hexdigest()}>"

    def device(self, device: torch.device) -> str:
        """A device without its index: the first of its type, the second, as they come."""
        if device.type in ("cpu", "meta"):
            return device.type
        known = self._devices.setdefault(device.type, {})
        return f"{device.type}#{known.setdefault(device.index, len(known))}"

    # -- what is found --------------------------------------------------------------------------------------

    def name(self, name: str, key: Any) -> tuple[str, bool]:
        """A name for a thing, which no other thing has, and whether it is a new one."""
        known = self._names.setdefault(name, [])
        place = next((i for i, one in enumerate(known) if one is key), None)
        if place is None:
            known.append(key)
        number = len(known) - 1 if place is None else place
        return (f"{name} #{number + 1}" if number else name), place is None

    def add(self, name: str, text: str, description: str | None = None) -> None:
        """Add an ingredient. A name that is taken by another text keeps that: the new one gets a number."""
        place, number = f"{self.prefix}{name}", 1
        one = Ingredient.of(place, text, description)
        while (known := self.ingredients.get(one.name)) is not None and known.digest != one.digest:
            number += 1
            one = Ingredient.of(f"{place} #{number}", text, description)
        self.ingredients.setdefault(one.name, one)

    def doubt(self, reason: str) -> None:
        self.doubts.setdefault(reason, None)

    def run(self) -> None:
        """Look at everything that is left, and at what the names in it bring to light."""
        while self.queue or self._wake():
            if self.queue:
                self.queue.popleft()()
        self.dormant.clear()  # nobody asks any more; it refers to the walk

    def _wake(self) -> bool:
        """Queue what code asks for by name that was not asked for before."""
        asleep = len(self.dormant)
        for _ in range(asleep):
            name, wake = self.dormant.popleft()
            if self.is_dynamic or name in self.names:
                self.queue.append(wake)
            else:
                self.dormant.append((name, wake))
        return len(self.dormant) < asleep
