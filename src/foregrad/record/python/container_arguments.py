"""Container arguments: lists, dicts and objects. The function gets copies; each call changes its own as it has done.

batch.pop("labels")    batch == {"x": x, "labels": y}  becomes  {"x": the x of the call}
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import Any

import torch

from foregrad.core.plain_objects import attribute, held_by, hold, let_go
from foregrad.torch_private.pytree import node_of

#: What a function may change, beside objects.
LISTS = (list, deque)
DICTS = (dict, OrderedDict, defaultdict)
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_VALUES = (*_PLAIN, torch.dtype, torch.device, torch.layout, torch.memory_format, type, Enum)


@dataclass(frozen=True)
class Item:
    """A step from a list or dict to one of its items."""

    key: Any

    def __call__(self, value: Any) -> Any:
        return value[self.key]

    def __str__(self) -> str:
        return f"[{self.key!r}]"


@dataclass(frozen=True)
class Attribute:
    """A step from an object to one of its attributes."""

    name: str

    def __call__(self, value: Any) -> Any:
        return attribute(value, self.name)

    def __str__(self) -> str:
        return f".{self.name}"


@dataclass(frozen=True)
class Child:
    """A step from any other container to something that it holds."""

    place: int

    def __call__(self, value: Any) -> Any:
        node = node_of(value)
        return None if node is None else node.children[self.place]

    def __str__(self) -> str:
        return f"[{self.place}]"


def steps(value: Any, *, is_object: bool) -> list[tuple[Any, Any]] | None:
    """What something holds, with the step to it; None for what holds nothing."""
    if is_object:
        return [(Attribute(name), one) for name, one in held_by(value).items()]
    node = None if isinstance(value, (torch.Tensor, torch.Size)) else node_of(value)
    if node is None:
        return None
    if isinstance(value, dict):
        return list(zip(map(Item, value), node.children, strict=True))
    step = Item if type(value) in LISTS else Child
    return [(step(place), one) for place, one in enumerate(node.children)]


#: From the arguments, positional and by name, to something in them.
Path = tuple[Any, ...]


def at(given: Any, path: Path) -> Any:
    """What is at a place of the arguments."""
    for step in path:
        given = step(given)
    return given


def path_text(path: Path) -> str:
    return str(path[0].key) + "".join(map(str, path[1:])) if path else ""


def named(args: Any, kwargs: Any) -> dict[Any, Any]:
    """The arguments of a call by position or name, where paths begin."""
    return {**dict(enumerate(args)), **kwargs}


@dataclass(frozen=True, eq=False)
class Contents:
    """What something that may change holds: items, in a dict with their keys, and attributes."""

    items: tuple[Any, ...]
    keys: tuple[Any, ...] | None
    attributes: dict[str, Any]

    @classmethod
    def of(cls, value: Any) -> Contents:
        kind = type(value)
        attributes = held_by(value) if kind not in (*LISTS, *DICTS) else {}
        if isinstance(value, dict):
            base = OrderedDict if isinstance(value, OrderedDict) else dict
            return cls(tuple(base.values(value)), tuple(base.keys(value)), attributes)
        return cls(tuple(value) if kind in LISTS else (), None, attributes)

    def put_back(self, value: Any) -> None:
        """Let a value hold this again."""
        if same_contents(self, Contents.of(value)):
            return
        if type(value) in (*LISTS, *DICTS):
            refill(value, self.items, self.keys)
        else:
            let_go(value, tuple(held_by(value)))
            hold(value, self.attributes)

    def has_other_tensors(self, value: Any) -> bool:
        """Whether a value has got tensors that it did not hold."""
        now = Contents.of(value)
        known = {id(one) for one in (*self.items, *self.attributes.values())}
        held = (*now.items, *now.attributes.values())
        return any(isinstance(one, torch.Tensor) and id(one) not in known for one in held)


def refill(value: Any, items: Any, keys: tuple[Any, ...] | None) -> None:
    """Give a list or dict other contents."""
    if keys is None:
        value.clear()
        value.extend(items)
        return
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict  # past methods of a class of its own
    base.clear(value)
    for key, item in zip(keys, items, strict=True):
        base.__setitem__(value, key, item)


@dataclass(frozen=True, eq=False)
class Part:
    """The copy of a list, dict or object that the caller has, and what it held."""

    path: Path
    copy: Any
    kind: type
    before: Contents


class ContainerArguments:
    """Copies of the arguments of a call, with ghosts in the place of tensors; `opened` objects are copied, too."""

    def __init__(
        self,
        args: Any = (),
        kwargs: Any = None,
        opened: frozenset[int] = frozenset(),
        ghost_of: Callable[[Any], Any] = lambda value: value,
        numbers: Mapping[Path, Any] = MappingProxyType({}),
    ) -> None:
        self._opened, self._ghost_of, self._numbers = opened, ghost_of, numbers
        self._copies: dict[int, Any] = {}  # by the id of what is the caller's
        self._first: dict[int, Path] = {}
        self._made: list[tuple[Path, Any]] = []
        self.places: dict[int, Path] = {}  # of copies, and of what was not copied, by id
        self.visits: list[tuple[Path, Path]] = []  # places of what may change, and the first place of the same
        self._given = args, kwargs or {}
        self._alive: list[Any] = []  # what was met, so that ids stay theirs: some containers make what they hold
        self.args = tuple(self._copy(one, (Item(place),)) for place, one in enumerate(args))
        self.kwargs = {key: self._copy(one, (Item(key),)) for key, one in (kwargs or {}).items()}
        self.parts = [Part(path, copy, type(copy), Contents.of(copy)) for path, copy in self._made]
        self._num_references = [sys.getrefcount(part.copy) for part in self.parts]

    @property
    def copied(self) -> frozenset[int]:
        """The ids of the copies."""
        return frozenset(id(copy) for _, copy in self._made)

    def is_made_anew(self, path: Path) -> bool:
        """Whether a registered container gives another object each time that it is asked for what is at a place."""
        given = named(*self._given)
        return at(given, path) is not at(given, path)

    def referred_to(self) -> list[Part]:
        """Copies to which more refers than at first."""
        counts = zip(self.parts, self._num_references, strict=True)
        return [part for part, count in counts if sys.getrefcount(part.copy) > count]

    def changed(self) -> Iterator[tuple[Part, Contents]]:
        """What the function has changed, and what it holds now."""
        for part in self.parts:
            now = Contents.of(part.copy)
            if not same_contents(part.before, now):
                yield part, now

    def _copy(self, value: Any, path: Path) -> Any:
        if isinstance(value, (torch.Tensor, torch.Size, *_PLAIN)):
            return self._numbers[path] if path in self._numbers else self._ghost_of(value)
        self._alive.append(value)
        may_change = type(value) in (*LISTS, *DICTS) or id(value) in self._opened
        if id(value) in self._first:
            self.visits += [(path, self._first[id(value)])] * may_change
            return self._copies[id(value)]
        node = None if id(value) in self._opened else node_of(value)
        if may_change or (node is not None and isinstance(value, dict)):
            self.visits.append((path, path))
        self._first[id(value)] = path
        copy = self._copies[id(value)] = self._shallow(value)
        if copy is None and node is not None:
            copy = self._copies[id(value)] = node.make([one for _, one in self._parts_of(value, path)])
        elif copy is None:
            copy = self._copies[id(value)] = value
        else:
            self._fill(copy, value, path)
        if copy is not value:
            self._made.append((path, copy))
        if not isinstance(copy, _VALUES):
            self.places.setdefault(id(copy), path)
        return copy

    def _shallow(self, value: Any) -> Any:
        """An empty copy of what may be filled later."""
        if id(value) in self._opened:
            return object.__new__(type(value))
        kind = type(value)
        if kind is deque:
            return deque(maxlen=value.maxlen)
        if kind is defaultdict:
            return defaultdict(value.default_factory)
        return kind() if kind in (*LISTS, *DICTS) else None

    def _parts_of(self, value: Any, path: Path) -> list[tuple[Any, Any]]:
        found = steps(value, is_object=id(value) in self._opened) or []
        return [(step, self._copy(one, (*path, step))) for step, one in found]

    def _fill(self, copy: Any, value: Any, path: Path) -> None:
        parts = self._parts_of(value, path)
        if id(value) in self._opened:
            hold(copy, {step.name: one for step, one in parts})
        elif isinstance(value, dict):
            copy.update((step.key, one) for step, one in parts)
        else:
            copy.extend([one for _, one in parts])


def same_contents(before: Contents, now: Contents) -> bool:
    alike = before.keys == now.keys and list(before.attributes) == list(now.attributes)
    return (
        alike and _all_same(before.items, now.items) and _all_same(before.attributes.values(), now.attributes.values())
    )


def _all_same(before: Any, now: Any) -> bool:
    return len(before) == len(now) and all(map(is_same, before, now))


def is_same(one: Any, other: Any) -> bool:
    """Whether one value may stand for another: it is the same, or a plain one with the same bits."""
    return one is other or (isinstance(one, _PLAIN) and type(one) is type(other) and repr(one) == repr(other))
