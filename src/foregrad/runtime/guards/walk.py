"""The walk over what a function read: one node for each object, the nearest objects first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import torch

from foregrad.record.lift.locate import Location
from foregrad.record.python.executed_code import Reads, key_of
from foregrad.runtime.guards.nodes import (
    ArrayNode,
    AttributesNode,
    HolderNode,
    Pinned,
    Plain,
    ReadNode,
    Same,
    TensorNode,
    original_of,
)
from foregrad.runtime.guards.python_objects import VALUES

#: More objects than these are not looked at: what is left out is named as frozen.
_MOST = 200_000

#: Makes the node of an object, or says None: another maker knows it.
Maker = Callable[["GuardWalk", Any, str], ReadNode | None]


@dataclass(frozen=True)
class KnownTensors:
    """What is known about tensors before the walk."""

    inputs: frozenset[int] = frozenset()  # ids of those that the program takes
    located: dict[int, Location] = field(default_factory=dict)  # where they are kept
    read_elsewhere: frozenset[int] = frozenset()  # containers whose tensors are read by what checks them
    declared: frozenset[int] = frozenset()  # optimizers and others that are read at each call


@dataclass(frozen=True)
class Boundary:
    """What a walk does not go into: variables and classes of some modules; and what functions stand for others.

    After a capture, results that functions which ran keep in their caches are those of the capture itself.
    """

    is_outside: Callable[[str], bool] = lambda module: False
    unwrapped: Callable[[Any], Any] = original_of
    is_after_capture: bool = False


NO_BOUNDARY = Boundary()


@dataclass(frozen=True)
class ObjectPart:
    """Something that an object holds, and what reads it there as Python: an item, an attribute, contents of a cell."""

    name: str
    value: Any
    owner: Any = None
    key: Any = None
    is_attribute: bool = False


class GuardWalk:
    """Nodes for objects, made by the first maker that knows their kind."""

    def __init__(
        self,
        reads: Reads,
        makers: Sequence[Maker],
        closed: Sequence[Maker],
        tensors: KnownTensors,
        boundary: Boundary = NO_BOUNDARY,
    ) -> None:
        self.reads = reads
        self.tensors = tensors
        self.boundary = boundary
        self.holders: list[HolderNode | ArrayNode] = []
        self.empty: list[tuple[str, Any]] = []
        self.frozen: dict[str, str] = {}
        self.classes: dict[int, Any] = {}  # classes and modules whose entries were looked at
        self.getters: dict[Any, Any] = {}  # what reads a slot, the same for all objects of a class
        self.iterated: dict[type, frozenset[str]] = {}  # tables that code goes through, by the class of a module
        self.places: dict[int, list[Location]] = {}  # of tensors that the program takes
        self.asked_by_getters: set[str] = set()  # names that an `attrgetter` holds
        self._makers = makers
        self._closed = closed
        self._homes = frozenset(name.rpartition(".")[0] for name in reads.executed)  # classes whose methods ran
        self._known: dict[int, ReadNode] = {}
        self._known_closed: dict[int, ReadNode] = {}  # met within something closed alone
        self._alive: list[Any] = []
        self._todo: deque[tuple[HolderNode, Sequence[ObjectPart], bool]] = deque()

    @property
    def names(self) -> frozenset[str] | None:
        """Names of attributes that count; None for all."""
        return None if self.reads.computed else self.asked

    @property
    def asked(self) -> frozenset[str]:
        """Names of attributes that code asks for, or torch by itself."""
        return self.reads.names | {"forward"}

    def node(self, value: Any, name: str, *, closed: bool = False) -> ReadNode:
        """The node of an object. Within something closed, only what the object is counts."""
        if type(value) in VALUES:
            return Plain(name, value)
        value = self.boundary.unwrapped(value)
        known = self._known.get(id(value)) or (self._known_closed.get(id(value)) if closed else None)
        if known is not None:
            if isinstance(known, HolderNode):
                known.is_pinned = True  # others lead to it too
            return known
        if len(self._alive) >= _MOST:
            self.freeze(name, "too many objects are reached")
            return Same(name, value)
        made = self._made(value, name, self._closed) if closed else self.opened(value, name)
        if not isinstance(made, Plain):
            (self._known_closed if closed else self._known)[id(value)] = made
            self._alive.append(value)
        return made

    def opened(self, value: Any, name: str) -> ReadNode:
        """The node of an object with all that it holds."""
        return self._made(value, name, self._makers)

    def _made(self, value: Any, name: str, makers: Sequence[Maker]) -> ReadNode:
        return next(node for make in makers if (node := make(self, value, name)) is not None)

    def hold(self, holder: HolderNode, parts: Iterable[ObjectPart], *, closed: bool = False) -> HolderNode:
        """Take a holder in; its parts are looked at later."""
        self.holders.append(holder)
        self._known.setdefault(id(holder.live), holder)
        self._alive.append(holder.live)
        self._todo.append((holder, tuple(parts), closed))
        return holder

    def finish(self) -> None:
        """Look at everything that was left for later."""
        while self._todo:
            holder, parts, closed = self._todo.popleft()
            holder.children = [self._part(part, holder, closed) for part in parts]

    def pin(self, values: Iterable[Any]) -> frozenset[int]:
        """Let calls find the very same objects, of those that were met: these, by their ids."""
        found = [node for one in values if (node := self._known.get(id(one)) or self._known_closed.get(id(one)))]
        for node in found:
            if isinstance(node, HolderNode):
                node.is_pinned = True
        return frozenset(id(node.live) for node in found if isinstance(node, (HolderNode, Same)))

    def met(self, ids: frozenset[int]) -> frozenset[int]:
        """Those of some objects that were met."""
        return ids & (self._known.keys() | self._known_closed.keys())

    def freeze(self, name: str, why: str) -> None:
        """Say that something is not checked."""
        self.frozen.setdefault(name, why)

    def ran(self, function: Any) -> bool:
        """Whether a function ran in the capture. What is none of Python's cannot be said to have."""
        if type(function) is not FunctionType:
            return False
        return key_of(function.__code__, function.__globals__) in self.reads.executed

    def ran_in(self, kind: type) -> bool:
        """Whether methods of a class, or of one that it comes from, ran in the capture."""
        return any(f"{one.__module__}:{one.__qualname__}" in self._homes for one in kind.__mro__ if one is not object)

    def _part(self, part: ObjectPart, holder: HolderNode, closed: bool) -> ReadNode:
        if issubclass(type(part.value), torch.Tensor):  # `isinstance` would ask an object for its `__class__`
            return self._with_attributes(part, self._tensor(part, holder))
        if issubclass(type(part.value), ReadNode):
            return part.value
        return self.node(part.value, part.name, closed=closed)

    def _with_attributes(self, part: ObjectPart, node: ReadNode) -> ReadNode:
        """A tensor with attributes that code asks for must be the very same, and so must they."""
        attributes = part.value.__dict__ if type(part.value) in (torch.Tensor, torch.nn.Parameter) else {}
        if self.asked.isdisjoint(attributes):
            return node
        found = AttributesNode(part.name, attributes, self.names)
        self.hold(found, [ObjectPart(found.inner(key), attributes[key], attributes, key) for key in found.keys])
        return self.hold(
            Pinned(part.name, part.value, (_dict_of, _itself)), [ObjectPart("", found), ObjectPart("", node)]
        )

    def _tensor(self, part: ObjectPart, holder: HolderNode) -> ReadNode:
        tensor, known = part.value, self.tensors
        if id(tensor) not in known.inputs:
            return TensorNode(part.name, tensor, is_input=False)
        if id(holder.live) in known.read_elsewhere:
            return TensorNode(part.name, tensor, is_input=True)
        if part.owner is None:
            return Same(part.name, tensor)
        here = Location("closure", part.name, part.owner, part.key, is_attribute=part.is_attribute)
        known_place = known.located.get(id(tensor))
        if known_place is None or not known_place.covers(here):
            self.places.setdefault(id(tensor), []).append(here)
            holder.is_pinned = True
        return TensorNode(part.name, tensor, is_input=True)


def _dict_of(value: Any) -> Any:
    return value.__dict__


def _itself(value: Any) -> Any:
    return value
