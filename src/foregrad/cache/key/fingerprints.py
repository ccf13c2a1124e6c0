"""Fingerprints of Python objects: texts that are equal in two processes if the objects are, whatever their addresses.

Functions go by their code and defaults, classes by name, containers by their items, arrays by their bytes.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import logging
import operator
import re
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from foregrad.cache.key.code_digest import known_digest
from foregrad.cache.key.libraries import library_of, library_of_class, library_of_function
from foregrad.core.real_class import attributes_in
from foregrad.runtime.guards.nodes import ABSENT, original_of
from foregrad.runtime.guards.python_objects import (
    BUFFERS,
    LOGGERS_OWN,
    VALUES,
    hides_state,
    holds_nothing_of_users,
)
from foregrad.torch_private.global_state import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    registered_with,
    undisabled,
)

#: Containers of libraries are looked into so deep, and so far.
_DEEPEST, _MOST_ITEMS = 12, 20_000
_LONG = 200

_MAPPINGS = (dict, OrderedDict, defaultdict, types.MappingProxyType)
_ORDERED = (list, tuple, deque)
_SETS = (set, frozenset)
_IN_C = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.ClassMethodDescriptorType,
    types.MethodWrapperType,
    np.ufunc,
    type(np.mean),
)
_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)
_ALIASES = (types.GenericAlias, types.UnionType)

#: Their subclasses are values with attributes.
_TEXTS = (str, bytes, int, float, complex)


class Fingerprints:
    """Fingerprints of objects. User code found inside of libraries is set aside, to be looked at in full."""

    def __init__(self, asked: frozenset[str], left_out: frozenset[str] = frozenset()) -> None:
        self.asked = asked  # names of attributes that code asks for
        self._left_out = left_out  # modules whose objects are not part of a key
        self.foreign: dict[str, Any] = {}  # by place
        self.doubts: dict[str, None] = {}
        self._num_items = 0

    def of(self, value: Any, place: str, depth: int = 0) -> str:
        """The fingerprint of an object; `place` is where it is kept."""
        kind = type(value)
        if kind in VALUES:
            return _plain(value)
        if issubclass(kind, type):
            return self._class(value, place)
        if issubclass(kind, FunctionType):
            return self._function(value, place, depth)
        if issubclass(kind, ModuleType):
            return f"module {vars(value).get('__name__')}"
        if kind is CodeType:
            return f"code {known_digest(value)}"
        if issubclass(kind, torch.Tensor):
            return self.tensor((kind, value.shape, value.dtype, value.device, value.requires_grad))
        if kind in (*_MAPPINGS, *_ORDERED, *_SETS):
            return self._container(value, place, depth)
        return self._object(value, kind, place, depth)

    def tensor(self, look: tuple[Any, ...] | None) -> str:
        if look is None:
            return "tensor"
        kind, shape, dtype, device, needs_grad = look
        return f"tensor {kind.__qualname__} {tuple(shape)} {dtype} {device.type} {needs_grad}"

    def is_foreign(self, value: Any) -> bool:
        """Whether something is the user's own: code, a class, or an object of such a class."""
        value, kind = _inner(value), type(_inner(value))
        if issubclass(kind, FunctionType):
            return library_of_function(undisabled(original_of(value))) is None
        if issubclass(kind, type):
            return library_of_class(value) is None and library_of(value.__module__) is None
        if issubclass(kind, ModuleType):
            return library_of(str(vars(value).get("__name__"))) is None
        return bool(kind.__flags__ & (1 << 9)) and library_of(kind.__module__) is None

    def is_left_out(self, value: Any) -> bool:
        """Whether an object belongs to a module that is not part of a key."""
        if not self._left_out or type(value) in VALUES:
            return False
        inner = _inner(value)
        kind = type(inner)
        if issubclass(kind, ModuleType):
            return vars(inner).get("__name__") in self._left_out
        home = inner if issubclass(kind, (type, FunctionType)) else kind
        return home.__module__ in self._left_out

    # -- kinds ------------------------------------------------------------------------------------------------

    def _class(self, value: type, place: str) -> str:
        registered = [one for one in registered_with(value) if self.is_foreign(one)]
        for one in registered:
            self.foreign.setdefault(f"{place}.register({one.__qualname__})", one)
        more = f" with {sorted(f'{one.__module__}.{one.__qualname__}' for one in registered)}" if registered else ""
        bases = "" if library_of(value.__module__) else f" of {[one.__qualname__ for one in value.__mro__[1:]]}"
        return f"class {value.__module__}.{value.__qualname__}{bases}{more}"

    def _function(self, value: Any, place: str, depth: int) -> str:
        function = undisabled(original_of(value))
        defaults = (function.__defaults__, function.__kwdefaults__)
        given = [self.of(one, f"defaults of {place}", depth + 1) for one in defaults if one]
        name = f"{function.__module__}.{function.__qualname__}"
        return " ".join(["function", name, known_digest(function.__code__), *given])

    def _container(self, value: Any, place: str, depth: int) -> str:
        self._num_items += len(value)
        if depth >= _DEEPEST or self._num_items > _MOST_ITEMS:
            self.doubts[f"{place} is too large, or too deeply nested, to be compared"] = None
            return f"{len(value)} items"
        if isinstance(value, _MAPPINGS):
            pairs = [
                (self._item(k, f"key of {place}", depth), self._item(v, f"{place}[{_key(k)}]", depth))
                for k, v in value.items()
                if not self.is_left_out(k) and not self.is_left_out(v)
            ]
            return f"{{{', '.join(f'{key}: {one}' for key, one in pairs)}}}"
        there = [one for one in value if not self.is_left_out(one)]
        items = [self._item(one, f"{place}[{number}]", depth) for number, one in enumerate(there)]
        return f"{type(value).__name__} [{', '.join(sorted(items) if isinstance(value, _SETS) else items)}]"

    def _item(self, value: Any, place: str, depth: int) -> str:
        if type(value) not in VALUES and self.is_foreign(value):
            self.foreign.setdefault(place, value)
        return self.of(value, place, depth + 1)

    def _object(self, value: Any, kind: type, place: str, depth: int) -> str:
        inner = _inner(value)
        if inner is not value:
            return f"{kind.__name__} of {self.of(inner, place, depth + 1)}"
        if issubclass(kind, np.ma.MaskedArray):
            held = getattr(value, "_fill_value", None)  # what is asked for as `fill_value` is written when it is read
            parts = (np.asarray(value.data), np.asarray(value.mask), None if held is None else np.asarray(held))
            return f"masked {' '.join(self.of(one, place, depth + 1) for one in parts)}"
        if issubclass(kind, np.ndarray):
            return f"array {value.dtype} {value.shape} {_digest(np.ascontiguousarray(value).tobytes())}"
        if issubclass(kind, np.generic):
            return f"{value.dtype} {value.tobytes().hex()}"
        if issubclass(kind, BUFFERS):
            return f"memory {kind.__module__}.{kind.__qualname__} {_digest(bytes(value))}"
        if issubclass(kind, BuiltinFunctionType):
            owner = value.__self__
            of = "" if isinstance(owner, (ModuleType, type, type(None))) else f" of {self.of(owner, place, depth + 1)}"
            return f"builtin {value.__module__}.{value.__qualname__}{of}"
        if issubclass(kind, _IN_C):
            owner = getattr(value, "__objclass__", None)
            return f"{kind.__name__} {getattr(owner, '__qualname__', '')}.{value.__name__}"
        if issubclass(kind, functools.partial):
            parts = (value.func, value.args, value.keywords)
            return f"partial {' '.join(self.of(one, place, depth + 1) for one in parts)}"
        if issubclass(kind, (OpOverload, OpOverloadPacket, HigherOrderOperator)):
            return f"op {value}"
        if issubclass(kind, torch.jit.ScriptFunction):
            return f"script function {value.name} {_digest(value.code.encode())}"
        if issubclass(kind, _GETTERS):
            return f"{kind.__name__} {self.of(value.__reduce__()[1], place, depth + 1)}"
        if issubclass(kind, enum.Enum) or _is_enum_in_c(value):
            return f"{kind.__module__}.{kind.__qualname__}.{value.name}"
        if issubclass(kind, (np.dtype, torch.qscheme)):
            return f"{kind.__qualname__} {value!r}"
        if issubclass(kind, _ALIASES):
            return f"{kind.__name__} {self.of((getattr(value, '__origin__', None), value.__args__), place, depth + 1)}"
        if issubclass(kind, logging.Logger):
            state = f"logger {value.name} {value.level} {value.disabled} {value.propagate}"
            return state + self._attributes(value, place, depth, LOGGERS_OWN)
        if value is ABSENT:
            return "nothing"
        if issubclass(kind, _TEXTS):
            held = self._attributes(value, place, depth)
            return f"{kind.__module__}.{kind.__qualname__} {_short(_as_base(value))}{held}"
        if issubclass(kind, weakref.ref):
            return f"reference to {self.of(value(), place, depth + 1)}"
        if hides_state(kind) and not holds_nothing_of_users(kind):
            self.doubts[f"{place} is a {kind.__module__}.{kind.__qualname__}, whose state cannot be compared"] = None
        return f"object of {kind.__module__}.{kind.__qualname__}{self._attributes(value, place, depth)}"

    def _attributes(self, value: Any, place: str, depth: int, left_out: frozenset[str] = frozenset()) -> str:
        """What an object of a library keeps under names which code asks for."""
        held = attributes_in(value)
        names = sorted((self.asked & held.keys()) - left_out) if type(held) is dict else ()
        if names and depth >= _DEEPEST:
            self.doubts[f"{place} is too deeply nested to be compared"] = None
            return ""
        return "".join(f" {key}={self.of(held[key], f'{place}.{key}', depth + 1)}" for key in names)


def _inner(value: Any) -> Any:
    """The function that a method or a descriptor runs."""
    kind = type(value)
    if kind in (classmethod, staticmethod, MethodType):
        return value.__func__
    if kind in (property, functools.cached_property):
        return value.fget if kind is property else value.func
    return value.__wrapped__ if kind is functools._lru_cache_wrapper else value


def _is_enum_in_c(value: Any) -> bool:
    """Whether an object is one of the members of its class, as pybind11 makes them."""
    members = vars(type(value)).get("__members__")
    name = getattr(value, "name", None) if members is not None else None
    return type(name) is str and name in type(value).__members__ and type(value).__members__[name] == value


def _as_base(value: Any) -> str:
    """A value without what its own class makes of it."""
    base = next(one for one in _TEXTS if isinstance(value, one))
    return str(base.__repr__(value))


def _key(value: Any) -> str:
    """A key of a dict, in the name of a place."""
    return repr(value)[:_LONG] if type(value) in VALUES else type(value).__qualname__


def _plain(value: Any) -> str:
    if isinstance(value, re.Pattern):
        return f"pattern {_short(repr(value.pattern))} {value.flags}"
    text = f"{type(value).__name__} {value!r}"
    return _short(text)


def _short(text: str) -> str:
    return text if len(text) <= _LONG else f"{text[:40]}... {_digest(text.encode())}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
