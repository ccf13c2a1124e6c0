"""Nodes of code: functions that ran, methods, partial functions, cells, and modules of Python's."""

from __future__ import annotations

import contextvars
import functools
import os
import sys
import threading
import weakref
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from foregrad.core.real_class import is_a
from foregrad.process.dict_versions import has_versions
from foregrad.record.python.executed_code import is_library
from foregrad.runtime.guards.cached_results import cached_results, tells_results
from foregrad.runtime.guards.nodes import (
    ABSENT,
    AttributesNode,
    Fields,
    Items,
    Pinned,
    ReadNode,
    Same,
    SomeEntries,
    TensorNode,
    read_field,
)
from foregrad.runtime.guards.python_objects import field, holds_nothing, is_closed, is_made_by_python
from foregrad.runtime.guards.walk import NO_BOUNDARY, GuardWalk, ObjectPart
from foregrad.runtime.guards.walk_classes import class_node
from foregrad.runtime.guards.walk_data import attributes_of


def make_function(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """A function: one that ran, by its code, its defaults and its closure. At each call the defaults of a library's are
    not compared."""
    if not is_a(value, FunctionType):
        return None
    is_users, ran = not is_library(value.__code__), walk.ran(value)
    keys = ["__defaults__", "__kwdefaults__"] if ran and (is_users or walk.boundary is not NO_BOUNDARY) else []
    parts = [ObjectPart(f"{name}.{key}", getattr(value, key)) for key in keys]
    if ran and value.__closure__:
        keys.append("__closure__")
        parts.append(ObjectPart(name, _closure(walk, value, name)))
    attributes = vars(value)
    if attributes and (is_users or walk.names is None or not walk.names.isdisjoint(attributes)):
        keys.append("__dict__")
        parts.append(ObjectPart(name, attributes_of(walk, attributes, name, walk.names)))
    elif ran and is_users:
        walk.empty.append((f"{name}.__dict__", attributes))
    if not keys:
        return Same(name, value)
    keys.append("__code__")
    parts.append(ObjectPart(f"{name}.__code__", value.__code__))
    return walk.hold(Fields(name, value, map(field, keys)), parts)


def _closure(walk: GuardWalk, function: FunctionType, name: str) -> ReadNode:
    cells = function.__closure__ or ()
    variables = zip(function.__code__.co_freevars, cells, strict=True)
    return walk.hold(Items(f"closure of {name}", cells), [ObjectPart(variable, cell) for variable, cell in variables])


#: What holds functions and data, and the fields in which it does.
_FIELDS: dict[type, tuple[str, ...]] = {
    CellType: ("cell_contents",),
    MethodType: ("__func__", "__self__"),
    functools.partial: ("func", "args", "keywords"),
    functools.partialmethod: ("func", "args", "keywords"),
    property: ("fget",),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.cached_property: ("func",),
}

#: More results than these, kept by a function, are not compared.
_MOST_RESULTS = 200


def make_from_fields(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """Methods, cells, descriptors and partial functions."""
    if is_a(value, functools._lru_cache_wrapper):
        return _with_results(walk, value, name)
    keys = _FIELDS.get(type(value))
    if keys is None:
        return _of_builtin(walk, value, name)
    parts = [_part(value, key, name) for key in keys]
    attributes = getattr(value, "__dict__", None) if is_a(value, functools.partial) else None
    if attributes:
        keys = (*keys, "__dict__")
        parts.append(ObjectPart(name, attributes_of(walk, attributes, name, walk.names)))
    return walk.hold(Fields(name, value, map(field, keys)), parts)


def _with_results(walk: GuardWalk, value: Any, name: str) -> ReadNode:
    """A function with a cache: what it runs, its attributes, and the results that it gives without running."""
    parts = [_part(value, "__wrapped__", name), ObjectPart(name, attributes_of(walk, vars(value), name, walk.names))]
    getters: list[Any] = [field("__wrapped__"), field("__dict__")]
    if not is_closed(value.__module__) and not (walk.boundary.is_after_capture and walk.ran(value.__wrapped__)):
        count = value.cache_info().currsize
        if count > _MOST_RESULTS or (count and not tells_results(value)):
            walk.freeze(f"{name}'s cache", f"one of {count} results")
        else:
            results = list(cached_results(value))
            parts += [ObjectPart(f"{name}{one.known[0]}", one.known) for one in results]
            getters += results
    return walk.hold(Fields(name, value, getters), parts)


def _part(value: Any, key: str, name: str) -> ObjectPart:
    inner = read_field(field(key), value)
    if key == "cell_contents":
        return ObjectPart(name, inner, value)
    named = name if key in ("func", "__func__", "__wrapped__", "fget") else f"{name}.{key}"
    return ObjectPart(named, inner, value, key, is_attribute=True)


def _of_builtin(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """A method in C, such as `dict.get` of some dict; and what a weak reference leads to."""
    if is_a(value, BuiltinFunctionType):
        if isinstance(value.__self__, (ModuleType, type, type(None))):
            return Same(name, value)
        return walk.hold(Pinned(name, value, [field("__self__")]), [ObjectPart(f"{name}.__self__", value.__self__)])
    if is_a(value, weakref.ref):
        return walk.hold(Pinned(name, value, [_referent]), [ObjectPart(name, value())])
    if is_a(value, contextvars.ContextVar):
        return walk.hold(Pinned(name, value, [_current]), [ObjectPart(name, _current(value))])
    return None


def _referent(reference: Any) -> Any:
    return reference()


def _current(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get(ABSENT)


def make_module(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """A module of Python's: the variables in it that code asks for."""
    if not is_a(value, ModuleType):
        return None
    variables = vars(value)
    if id(variables) not in walk.classes and not walk.boundary.is_outside(value.__name__):
        walk.classes[id(variables)] = variables
        closed = is_closed(value.__name__)
        holder = AttributesNode(name, variables, walk.names, home=value.__name__)
        walk.hold(holder, [_variable(walk, holder, key, closed) for key in holder.keys], closed=closed)
    return Same(name, value)


def _variable(walk: GuardWalk, holder: AttributesNode, key: str, closed: bool) -> ObjectPart:
    """A variable of a module; what no code asks for in a library counts as what it is."""
    name, value = holder.inner(key), holder.live[key]
    return ObjectPart(name, Same(name, value) if closed and key not in walk.asked else value, holder.live, key)


def make_closed(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    """What torch, NumPy or Python hold: what it is, unless the user has put it there."""
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return TensorNode(name, value, is_input=False)
    if issubclass(kind, ModuleType):
        return make_module(walk, value, name)
    if issubclass(kind, FunctionType):
        return make_function(walk, value, name) if not is_library(value.__code__) or value.__closure__ else None
    if name.rpartition(".")[2].startswith("_global_") and is_a(value, dict) and holds_nothing(value):
        walk.empty.append((name, value))
        return None
    if issubclass(kind, (staticmethod, classmethod, property, functools.partial)):
        return make_from_fields(walk, value, name)
    if kind is dict and has_versions() and walk.boundary is NO_BOUNDARY and not any(value is one for one in _CHANGING):
        _table(walk, value, name)
    if issubclass(kind, type) and (walk.ran_in(value) or _has_users_functions(value)):
        return class_node(walk, value)
    is_users = is_made_by_python(kind) and not is_closed(kind.__module__)
    is_open = name.rpartition(".")[2].startswith("_global_") or value is os.environ
    if is_users or is_open or (issubclass(kind, type) and not is_closed(value.__module__)):
        return walk.opened(value, name)
    return None


#: Tables of the process itself.
_CHANGING = (sys.modules, vars(threading)["_active"], vars(threading)["_limbo"])


def _table(walk: GuardWalk, table: dict[Any, Any], name: str) -> None:
    """What of the user's is in a table of torch, NumPy or Python: a function that was registered there, or something
    under a class."""
    holder = SomeEntries(name, table, _is_users)
    parts = [ObjectPart(f"{name}[{_shown(key)}]", table[key]) for key in holder.keys]
    walk.hold(holder, parts, closed=True)


def _shown(key: Any) -> str:
    return ", ".join(str(getattr(one, "__name__", one)) for one in (key if isinstance(key, tuple) else (key,)))


def _is_users(key: Any, value: Any) -> bool:
    return any(map(_is_made_outside, (*key, value) if type(key) is tuple else (key, value)))


def _is_made_outside(value: Any) -> bool:
    """Whether something belongs to none of torch, NumPy and Python."""
    if is_a(value, FunctionType):
        return not is_library(value.__code__)
    kind = value if is_a(value, type) else type(value)
    return is_made_by_python(kind) and not is_closed(kind.__module__)


def _has_users_functions(kind: type) -> bool:
    """Whether somebody has given a class other methods."""
    return any(type(one) is FunctionType and not is_library(one.__code__) for one in vars(kind).values())


def make_same(walk: GuardWalk, value: Any, name: str) -> ReadNode:
    return Same(name, value)
