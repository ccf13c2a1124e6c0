"""Snapshots: a copy of what a Python object holds, one level deep, to be compared with what it holds later."""

from __future__ import annotations

import array
import contextvars
import ctypes
import os
import sys
import threading
from collections import deque
from dataclasses import dataclass
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

from foregrad.record.python.iterators import PLAIN, is_iterator, stand_of

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
CONTAINERS = (list, dict, set, deque)
_MOST_BYTES = 1_000_000


#: What lets others see its memory.
_BUFFERS = (memoryview, ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)


@dataclass(frozen=True, eq=False)
class Variables:
    """Variables of a module, or attributes of an object, that code names. Those of libraries count if they are plain:
    functions and classes, these put there for themselves."""

    variables: dict[str, Any]
    names: frozenset[str]
    is_plain: bool = False

    def read(self) -> dict[str, Any]:
        found = {name: self.variables[name] for name in self.names if name in self.variables}
        return {name: one for name, one in found.items() if self._counts(one)}

    def _counts(self, value: Any) -> bool:
        return isinstance(value, PLAIN) if self.is_plain else not isinstance(value, ModuleType)


def is_generator(kind: type) -> bool:
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and issubclass(kind, (numpy.Generator, numpy.RandomState, numpy.BitGenerator))


#: Attributes that torch keeps in every module.
TABLES = frozenset(vars(torch.nn.Module()))


def attributes(value: Any, named: frozenset[str] = frozenset()) -> dict[str, Any] | None:
    """The attributes of an object of the user's. Of what a class of torch's keeps for itself, those that are named."""
    if isinstance(value, type):
        return {k: v for k, v in vars(value).items() if k[:2] != "__"} if not is_closed(value) else None
    found = getattr(value, "__dict__", None) if _has_dict(type(value)) else None
    if isinstance(found, dict) and keeps_for_itself(type(value)):
        found = {key: one for key, one in found.items() if key[:1] != "_" or key in named - TABLES}
    slots = {name: getattr(value, name, ABSENT) for name in _slots(type(value))}
    return {**found, **slots} if type(found) is dict else slots or None


def _has_dict(kind: type) -> bool:
    return kind.__dictoffset__ != 0 or issubclass(kind, threading.local)


def keeps_for_itself(kind: type) -> bool:
    """Whether objects of a class have attributes that are nobody else's; where an iterator stands is seen from
    outside."""
    return is_closed(kind) and not issubclass(kind, threading.local) and not hasattr(kind, "__next__")


def _slots(kind: type) -> list[str]:
    named = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    return [name for names in named for name in ((names,) if isinstance(names, str) else names) if name[:2] != "__"]


def is_closed(kind: type) -> bool:
    """Whether a class belongs to Python, torch or NumPy."""
    top = kind.__module__.partition(".")[0]
    return top in ("torch", "numpy", "foregrad") or (top in sys.stdlib_module_names and top != "__main__")


def contents_of(value: Any) -> Any:
    """A copy of what an object holds, one level deep. Of a module that is what code names there, as `Variables`."""
    if isinstance(value, Variables):
        return value.read()
    if isinstance(value, ModuleType):
        return ABSENT
    if value is os.environ:
        return dict(value)
    if isinstance(value, CONTAINERS):
        own = attributes(value) if type(value) not in CONTAINERS else None
        return (type(value), dict(value) if isinstance(value, dict) else list(value), own)
    if isinstance(value, CellType):
        try:
            return value.cell_contents
        except ValueError:
            return ABSENT
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy":
        return _of_numpy(value)
    if is_iterator(value):
        return stand_of(value)
    if isinstance(value, (bytearray, array.array, *_BUFFERS)):
        return "bytes", bytes(value)
    if isinstance(value, contextvars.ContextVar):
        return "current", value.get(ABSENT)
    if issubclass(kind, (FunctionType, MethodType)):
        return dict(vars(value)) if kind is FunctionType else ABSENT
    found = attributes(value)
    return ABSENT if found is None else found


def _of_numpy(value: Any) -> Any:
    if is_generator(type(value)):
        return value.get_state() if hasattr(value, "get_state") else getattr(value, "bit_generator", value).state
    is_small = hasattr(value, "tobytes") and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject
    return (value.shape, value.dtype, value.tobytes()) if is_small else ABSENT


def put_back(value: Any, before: Any) -> None:
    """Give an object the contents that it had."""
    if is_iterator(value) or (isinstance(value, contextvars.ContextVar) and before[1] is ABSENT):
        return  # what an iterator has given is gone; what a variable of a context holds cannot be taken out
    if isinstance(value, contextvars.ContextVar):
        value.set(before[1])
        return
    if isinstance(value, _BUFFERS):
        memoryview(value).cast("B")[:] = before[1]
        return
    if isinstance(value, CellType):
        value.cell_contents = before
    elif isinstance(value, CONTAINERS):
        value.clear()
        _refill(value, before[1])
    elif isinstance(value, (bytearray, array.array)):
        value[:] = type(value)(value.typecode, before[1]) if isinstance(value, array.array) else before[1]
    elif is_generator(type(value)):
        if hasattr(value, "set_state"):
            value.set_state(before)
        else:
            getattr(value, "bit_generator", value).state = before
    elif hasattr(value, "tobytes"):
        value[...] = numpy.frombuffer(before[2], before[1]).reshape(before[0])
    else:
        _put_attributes(value, before)


def _refill(value: Any, contents: Any) -> None:
    if isinstance(value, list | deque):
        value.extend(contents)
    else:
        value.update(contents)


def _put_attributes(value: Any, before: dict[str, Any]) -> None:
    if value is os.environ:
        value.clear()
        value.update(before)
        return
    now = contents_of(value)
    for key in dict.fromkeys([*before, *now]):
        was = before.get(key, ABSENT)
        if same(was, now.get(key, ABSENT)):
            continue
        table = value.variables if isinstance(value, Variables) else None
        if table is None and not isinstance(value, type) and key not in _slots(type(value)):
            table = vars(value)
        if table is not None:
            table.pop(key, None) if was is ABSENT else table.__setitem__(key, was)
        else:
            owner = type if isinstance(value, type) else object  # past methods of the class's own
            owner.__delattr__(value, key) if was is ABSENT else owner.__setattr__(value, key, was)


def same(before: Any, now: Any) -> bool:
    """Whether two copies hold the same: plain values by their bits, other objects by what they are."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, PLAIN):
        return before == now if not isinstance(before, (float, complex)) else repr(before) == repr(now)
    if isinstance(before, dict):
        return list(map(_key, before)) == list(map(_key, now)) and all(same(v, now[k]) for k, v in before.items())
    if isinstance(before, numpy.ndarray):
        return bool((before == now).all())
    if isinstance(before, (list, tuple)):
        return len(before) == len(now) and all(map(same, before, now))
    return False


def _key(key: Any) -> Any:
    return (type(key), key) if isinstance(key, PLAIN) else id(key)
