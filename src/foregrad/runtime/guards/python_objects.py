"""Objects of Python: which are values, which hold nothing that can change, and how the parts of others are read."""

from __future__ import annotations

import array
import collections
import ctypes
import datetime
import decimal
import fractions
import functools
import logging
import operator
import pathlib
import re
import struct
import sys
import threading
import types
import typing
import uuid
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy
import torch

from foregrad.record.python.executed_code import is_library_file
from foregrad.torch_private.global_state import HigherOrderOperator, OpOverload, OpOverloadPacket

#: Values: what they are is all that there is to them.
VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    type(...),
    type(NotImplemented),
    range,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
    torch.finfo,
    torch.iinfo,
    numpy.dtype,
    datetime.date,
    datetime.datetime,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PosixPath,
    pathlib.PurePosixPath,
    re.Pattern,
    uuid.UUID,
)

#: Objects of C whose insides no function reads as data, or which are read elsewhere.
HOLD_NOTHING = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.MethodWrapperType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.CodeType,
    types.GenericAlias,
    types.UnionType,
    type(threading.Lock()),
    type(threading.RLock()),
    torch.Generator,
    torch.Stream,
    numpy.ufunc,
    operator.itemgetter,
    OpOverload,  # what these hold, they look up when it is first asked for
    OpOverloadPacket,
    HigherOrderOperator,
    torch.jit.ScriptFunction,
    type(typing.Any),
    types.TracebackType,
    type(vars(collections.namedtuple("_Named", "a"))["a"]),
)

#: Other objects that are a piece of memory.
BUFFERS = (
    bytearray,
    array.array,
    memoryview,
    ctypes._SimpleCData,
    ctypes.Array,
    ctypes.Structure,
    ctypes.Union,
)

#: Such objects lead to code in C.
_HANDLES = ("PyCapsule", "instancemethod", "_VariableFunctionsClass", "pybind11_detail_function_record")


def holds_nothing_of_users(kind: type) -> bool:
    """Whether objects of a class in C hold nothing that Python can set, or what is read elsewhere."""
    return issubclass(kind, HOLD_NOTHING) or kind.__name__.startswith(_HANDLES)


#: What the logging module itself keeps in a logger.
LOGGERS_OWN = frozenset(vars(logging.getLogger("foregrad")))

#: Types that Python makes: the others are written in C.
_MADE_BY_PYTHON = 1 << 9


def is_made_by_python(kind: type) -> bool:
    return bool(kind.__flags__ & _MADE_BY_PYTHON)


#: Classes written in C whose objects are read in full where they are met.
_READ_IN_FULL = (
    object,
    *(list, tuple, set, frozenset, dict, collections.deque, collections.OrderedDict, collections.defaultdict),
    threading.local,
)
_POINTER = struct.calcsize("P")


def hides_state(kind: type) -> bool:
    """Whether objects of a class have room for more than attributes and slots: for what only C can read.

    Other classes make their objects larger by slots, a dict and a list of weak references.
    """
    return any(_hidden_bytes(one) > 0 for one in kind.__mro__ if one not in _READ_IN_FULL)


def _hidden_bytes(kind: type) -> int:
    own = vars(kind)
    slots = sum(isinstance(one, types.MemberDescriptorType) for key, one in own.items() if key not in _NO_SLOTS)
    known = slots + ("__dict__" in own) + ("__weakref__" in own)
    base = kind.__base__.__basicsize__ if kind.__base__ is not None else 0
    return kind.__basicsize__ - base - known * _POINTER


@functools.cache
def field(name: str) -> Callable[[Any], Any]:
    """What reads an attribute; the same for the same name."""
    getter = operator.attrgetter(name)
    _names[getter] = name
    return getter


_names: dict[Any, str] = {}


def field_text(getter: Callable[[Any], Any]) -> str | None:
    """The field of `{}` that a getter reads, as Python; None if it has no name."""
    if getter is type:
        return "type({})"
    return f"{{}}.{_names[getter]}" if getter in _names else None


#: Members of classes in C that hold addresses.
_NO_SLOTS = ("__weakref__", "__dict__", "__vectorcalloffset__", "__dictoffset__", "__weaklistoffset__")


def slots_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Attributes that the objects of a class keep outside a dict, with their descriptors."""
    for one in kind.__mro__:
        if is_made_by_python(one):
            for name, member in vars(one).items():
                if isinstance(member, types.MemberDescriptorType) and name not in _NO_SLOTS:
                    yield name, member


@functools.cache
def _is_closed(name: str, file: str | None) -> bool:
    top = name.partition(".")[0]
    if top in ("torch", "functorch", "foregrad", "numpy"):
        return True
    if file is None:
        return top in sys.stdlib_module_names and top != "__main__"
    return top in sys.stdlib_module_names and is_library_file(file)


def is_closed(name: Any) -> bool:
    """Whether a module is part of torch, NumPy or Python: of what it holds, only what it is counts."""
    module = sys.modules.get(name) if isinstance(name, str) else None
    return isinstance(module, ModuleType) and _is_closed(name, getattr(module, "__file__", None))


def has_own_getattr(kind: type) -> bool:
    """Whether a class answers by itself for attributes that its objects do not have under that name."""
    own = [one for one in kind.__mro__ if is_made_by_python(one) and one is not torch.nn.Module]
    return any("__getattr__" in vars(one) or "__getattribute__" in vars(one) for one in own)


def holds_nothing(entries: dict[Any, Any]) -> bool:
    """Whether a dict is empty, but for hooks of foregrad's: they are there while some thread records."""
    return all(f"{getattr(one, '__module__', '')}.".startswith("foregrad.") for one in list(entries.values()))
