"""Argument objects: objects of Python classes among the arguments, as nodes of a tree: their tensors are inputs.

The function gets copies of those that are opened. Any other is passed as it is; each call must bring the very same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from foregrad.core.errors import CaptureError
from foregrad.core.plain_objects import held_by, is_plain
from foregrad.record.python.container_arguments import DICTS, LISTS, Contents, Item, Path, named, steps
from foregrad.torch_private.pytree import GivenObject, node_of

#: What a function must be given itself: others know it, or it would act by being freed. So must what holds it.
_STAY = (torch.nn.Module, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler, torch.Generator)
_DEEPEST = 40
NO_NUMBERS: Mapping[Path, str] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class GivenNumber:
    """A number among the arguments that may be another one in the next call."""

    place: Path
    kind: type


@dataclass(frozen=True, eq=False)
class GivenArguments:
    """The arguments of a call, and the same as trees in which objects that are opened are nodes."""

    args: Any
    kwargs: Any
    tree: tuple[Any, Any]
    opened: frozenset[int]  # ids of objects
    closed: frozenset[int]  # ids of those that could be opened, too
    objects: frozenset[int]  # ids of all that were found
    numbers: Mapping[Path, str]  # places of numbers that vary, and what they are called

    @classmethod
    def of(
        cls,
        args: Any,
        kwargs: Any,
        *,
        more: bool = False,
        without: frozenset[int] = frozenset(),
        numbers: Mapping[Path, str] = NO_NUMBERS,
    ) -> GivenArguments:
        """Objects that hold tensors are opened; with `more` all that can be. `numbers` vary."""
        search = _Search(without)
        search.look((args, kwargs), 0)
        can_be = {number: found for number, found in search.objects.items() if not found.stays}
        opened = frozenset(number for number, found in can_be.items() if more or found.has_tensors)
        opened = search.with_sharing(opened, can_be.keys())
        tree = _Opener(opened, numbers).arguments(args, kwargs) if opened or numbers else (args, kwargs)
        return cls(args, kwargs, tree, opened, frozenset(can_be) - opened, frozenset(search.objects), numbers)

    def places_of_numbers(self) -> Iterator[tuple[Path, Any]]:
        """Every integer and float among the arguments, and the way to it; of what is at two places, the first."""
        seen: set[int] = set()
        for key, value in named(self.args, self.kwargs).items():
            yield from self._numbers_in((Item(key),), value, seen)

    def _numbers_in(self, path: Path, value: Any, seen: set[int]) -> Iterator[tuple[Path, Any]]:
        if type(value) in (int, float):
            yield path, value
        elif type(value) is not str and id(value) not in seen:
            is_one = type(value) in (*LISTS, *DICTS) or id(value) in self.opened
            seen |= {id(value)} if is_one else set()
            for step, one in steps(value, is_object=id(value) in self.opened) or ():
                yield from self._numbers_in((*path, step), one, seen)


def opened_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, in which objects that hold tensors are nodes."""
    return GivenArguments.of((), arguments).tree[1]


@dataclass(frozen=True)
class _Held:
    """What a value holds: tensors, and something that no copy can stand for."""

    has_tensors: bool
    stays: bool


_NOTHING = _Held(False, False)


class _Search:
    """Looks at all objects among the arguments."""

    def __init__(self, without: frozenset[int]) -> None:
        self.objects: dict[int, _Held] = {}
        self._without = without
        self._within: set[int] = set()
        self._containers: list[tuple[int, frozenset[int]]] = []  # lists and dicts, each with the objects around it
        self._objects_within: list[int] = []
        self._alive: list[Any] = []  # what was met, so that ids stay theirs

    def with_sharing(self, opened: frozenset[int], can_be: Iterable[int]) -> frozenset[int]:
        """These objects, and those that hold a list or dict which is copied elsewhere: there would be two of it."""
        while True:
            copied = {number for number, within in self._containers if within <= opened}
            more = {one for number, within in self._containers if number in copied for one in within} & set(can_be)
            if more <= opened:
                return opened
            opened |= more

    def look(self, value: Any, depth: int) -> _Held:
        if isinstance(value, torch.Tensor):
            return _Held(True, False)
        if isinstance(value, _STAY):
            return _Held(False, True)
        if isinstance(value, torch.Size):
            return _NOTHING
        node = node_of(value)
        self._alive.append(value)
        if node is not None and id(value) in self._within:
            raise CaptureError(
                f"an argument holds a {type(value).__name__} that leads to itself, which a program cannot hold.\n"
                "Pass what it holds."
            )
        if type(value) in (*LISTS, *DICTS):
            self._containers.append((id(value), frozenset(self._objects_within)))
        if node is not None:
            return self._all(value, node.children, depth)
        return self._object(value, depth) if is_plain(value) else _NOTHING

    def _object(self, value: Any, depth: int) -> _Held:
        known = self.objects.get(id(value))
        if known is not None:
            return known
        ours = f"{type(value).__module__}.".startswith("foregrad.")
        if id(value) in self._within or id(value) in self._without or depth > _DEEPEST or ours:
            return _Held(False, True)  # it leads to itself, or is known elsewhere
        self._objects_within.append(id(value))
        inner = self._all(value, held_by(value).values(), depth)
        self._objects_within.pop()
        found = _Held(inner.has_tensors, inner.stays or hasattr(type(value), "__del__"))
        self.objects[id(value)] = found
        return found

    def _all(self, value: Any, inside: Any, depth: int) -> _Held:
        self._within.add(id(value))
        found = [self.look(one, depth + 1) for one in inside]
        self._within.discard(id(value))
        return _Held(any(one.has_tensors for one in found), any(one.stays for one in found))


class _Opener:
    """Makes trees in which some objects are nodes, and some numbers vary; one object is one node."""

    def __init__(self, objects: frozenset[int], numbers: Mapping[Path, str]) -> None:
        self._objects, self._numbers = objects, numbers
        self._made: dict[int, GivenObject] = {}

    def arguments(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        opened = {key: self._opened((Item(key),), value) for key, value in named(args, kwargs).items()}
        return tuple(opened[place] for place in range(len(args))), {key: opened[key] for key in kwargs}

    def _opened(self, path: Path, value: Any) -> Any:
        if path in self._numbers:
            return GivenNumber(path, type(value))
        is_object = id(value) in self._objects
        if id(value) in self._made:
            return self._made[id(value)]
        held = steps(value, is_object=is_object)
        if held is None:
            return value
        inner = [self._opened((*path, step), one) for step, one in held]
        if is_object:
            names = tuple(step.name for step, _ in held)
            self._made[id(value)] = GivenObject(type(value), names, tuple(inner), value)
            return self._made[id(value)]
        node = node_of(value)
        is_changed = any(one is not other for one, (_, other) in zip(inner, held, strict=True))
        return node.make(inner) if node is not None and is_changed else value


class Before:
    """What lists, dicts and objects among the arguments hold before the function runs, to be put back when it fails."""

    def __init__(self, given: GivenArguments) -> None:
        self.is_lost = False  # whether something cannot be put back: an iterator that has moved
        self._objects = given.objects
        self._before: dict[int, tuple[Any, Contents | None]] = {}
        if given.objects:
            self._look((given.args, given.kwargs))

    def put_back(self, *, all_of_it: bool = True) -> None:
        """Let all hold again what they did, or only those that have got other tensors."""
        for value, before in self._before.values():
            if before is not None and (all_of_it or before.has_other_tensors(value)):
                before.put_back(value)

    def _look(self, value: Any) -> None:
        is_object = id(value) in self._objects
        node = None if is_object or isinstance(value, (torch.Tensor, torch.Size)) else node_of(value)
        if id(value) in self._before or not (is_object or node is not None):
            return
        may_change = is_object or type(value) in (*LISTS, *DICTS)
        self._before[id(value)] = (value, Contents.of(value) if may_change else None)
        for one in held_by(value).values() if node is None else node.children:
            self._look(one)


def given_objects_in(tree: Any) -> Iterator[GivenObject]:
    """The opened objects in a tree."""
    if isinstance(tree, GivenObject):
        yield tree
    node = None if isinstance(tree, (torch.Tensor, torch.Size)) else node_of(tree)
    for child in () if node is None else node.children:
        yield from given_objects_in(child)
