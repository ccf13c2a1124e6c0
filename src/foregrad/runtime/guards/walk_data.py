"""Nodes of data: containers, arrays, and objects of Python's classes."""

from __future__ import annotations

import collections
import gc
import logging
import operator
import os
import weakref
from collections.abc import Iterator
from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy

from foregrad.core.real_class import attributes_in, is_a
from foregrad.runtime.guards.nodes import (
    ArrayNode,
    AttributesNode,
    Entries,
    Fields,
    HolderNode,
    Hooks,
    Items,
    Pinned,
    Plain,
    ReadNode,
    Same,
    read_field,
)
from foregrad.runtime.guards.python_objects import (
    BUFFERS,
    LOGGERS_OWN,
    field,
    has_own_getattr,
    hides_state,
    holds_nothing_of_users,
    slots_of,
)
from foregrad.runtime.guards.walk import GuardWalk, ObjectPart
from foregrad.runtime.guards.walk_classes import class_node
from foregrad.torch_private.global_state import is_global_hooks

#: Arrays beyond as many bytes, and containers beyond as many items, are not compared at each call.
_MOST_BYTES, _MOST_ITEMS = 1 << 20, 100_000

_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_MAPPINGS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)


def make_container(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """Containers with all that they hold."""
    if value is os.environ:
        variables = vars(value)["_data"]
        return walk.hold(Entries(name, variables), _entries(variables, name))
    if type(value) in _SEQUENCES or type(value) in _MAPPINGS:
        if len(value) > _MOST_ITEMS:
            walk.freeze(name, f"a {type(value).__name__} of {len(value)} items")
            return Same(name, value)
        return contents_of(walk, value, name)
    if is_a(value, _VIEWS):
        walk.node(gc.get_referents(value)[0], name)
        return Same(name, value)
    if is_a(value, weakref.WeakSet):
        return walk.hold(Pinned(name, value, (field("data"),)), [ObjectPart(name, value.data)])
    if is_a(value, slice):
        return walk.hold(
            Pinned(name, value, map(field, _SLICE)), [ObjectPart(f"{name}.{k}", getattr(value, k)) for k in _SLICE]
        )
    return None


_SLICE = ("start", "stop", "step")

#: What shows a dict that is kept elsewhere.
_VIEWS: tuple[type, ...] = (MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))


def contents_of(walk: GuardWalk, value: Any, name: str) -> HolderNode:
    if is_a(value, dict) and is_global_hooks(*name.rpartition(".")[::2]):
        return walk.hold(Hooks(name, value), [ObjectPart(f"{name}[{i}]", one) for i, one in enumerate(value.values())])
    if is_a(value, dict):
        return walk.hold(Entries(name, value), _entries(value, name))
    has_places = is_a(value, (list, tuple, collections.deque))
    owner = value if has_places else None
    return walk.hold(Items(name, value), [ObjectPart(f"{name}[{i}]", one, owner, i) for i, one in enumerate(value)])


def _entries(entries: dict[Any, Any], name: str) -> Iterator[ObjectPart]:
    for key, one in entries.items():
        plain = isinstance(key, (str, int))
        shown = repr(key) if plain else f"a {type(key).__name__}"
        yield ObjectPart(f"{name}[{shown}]", one, entries if plain else None, key)


def make_array(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    if is_a(value, numpy.generic):
        return Plain(name, value)
    is_numpys = is_a(value, numpy.ndarray)
    if not is_numpys and not is_a(value, BUFFERS):
        return None
    num_bytes = memoryview(value).nbytes if not is_numpys else value.nbytes
    if num_bytes > _MOST_BYTES or (is_numpys and value.dtype.hasobject):
        walk.freeze(name, f"an array of {num_bytes} bytes")
        return Same(name, value)
    node = ArrayNode(name, value)
    walk.holders.append(node)
    return node


def make_object(walk: GuardWalk, value: Any, name: str) -> ReadNode:
    """Any other object: what it keeps in attributes that code asks for, and what it holds as a container."""
    kind = type(value)
    if holds_nothing_of_users(kind):
        return Same(name, value)
    if isinstance(value, operator.attrgetter):
        walk.asked_by_getters.update(part for path in value.__reduce__()[1] for part in str(path).split("."))
        return Same(name, value)
    if kind.__module__.partition(".")[0] == "foregrad":
        target = getattr(value, "_target", None)
        if target is None:
            return Same(name, value)
        return walk.hold(Pinned(name, value, (field("_target"),)), [ObjectPart(name, target)])
    if id(value) in walk.tensors.declared:
        return _declared(walk, value, name)
    if isinstance(value, logging.Filterer):
        parts = [ObjectPart(name, attributes_of(walk, vars(value), name, walk.asked - LOGGERS_OWN))]
        return walk.hold(Pinned(name, value, (field("__dict__"),)), parts)
    attributes = attributes_in(value)
    slots = dict(slots_of(kind))
    if is_a(value, numpy.ndarray) or hides_state(kind):
        walk.freeze(name, f"a {kind.__module__}.{kind.__qualname__}, whose state cannot be compared")
        if not isinstance(attributes, dict):
            return Same(name, value)
    names = _names(walk, value)
    parts = [ObjectPart(name, class_node(walk, kind))]
    getters: list[Any] = [type]
    if isinstance(attributes, dict):
        parts.append(ObjectPart(name, attributes_of(walk, attributes, name, names)))
        asks: Any = kind.__getattribute__
        getters.append(field("__dict__") if asks is object.__getattribute__ else attributes_in)
    for key, member in slots.items():
        getter = walk.getters.setdefault(member, member.__get__)
        if names is None or key in names:
            parts.append(ObjectPart(f"{name}.{key}", read_field(getter, value), value, key, is_attribute=True))
            getters.append(getter)
    if is_a(value, (*_SEQUENCES, *_MAPPINGS)):
        parts.append(ObjectPart(name, contents_of(walk, value, name)))
        getters.append(itself)
    make = Fields if _is_value_like(kind) else Pinned
    return walk.hold(make(name, value, getters), parts)


def attributes_of(
    walk: GuardWalk, attributes: dict[str, Any], name: str, names: frozenset[str] | None
) -> AttributesNode:
    """The attributes of an object that code asks for."""
    holder = AttributesNode(name, attributes, names)
    walk.hold(holder, [ObjectPart(holder.inner(key), attributes[key], attributes, key) for key in holder.keys])
    return holder


#: What an optimizer runs beside its own step; the rest of declared state is read at each call.
_RUN = frozenset({"step", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"})


def _declared(walk: GuardWalk, value: Any, name: str) -> ReadNode:
    parts = [
        ObjectPart(name, class_node(walk, type(value))),
        ObjectPart(name, attributes_of(walk, vars(value), name, _RUN)),
    ]
    return walk.hold(Pinned(name, value, (type, field("__dict__"))), parts)


def _names(walk: GuardWalk, value: Any) -> frozenset[str] | None:
    """The attributes of an object that count: all, where code computes names, or the object answers to others."""
    if walk.reads.computed or walk.reads.computed_in_libraries or has_own_getattr(type(value)):
        return None
    return walk.asked


def _is_value_like(kind: type) -> bool:
    """Whether objects of a class that hold the same are as good as one another."""
    compares: Any = kind.__eq__
    return compares is not object.__eq__ and not issubclass(kind, Enum)


def itself(value: Any) -> Any:
    return value
