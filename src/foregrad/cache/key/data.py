"""Data: plain values, containers of them and objects with attributes, as texts."""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import logging
import operator
import re
import threading
import types
import weakref
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, TypeVar

import numpy as np
import torch

from foregrad.cache.key.walk import KeyWalk, Shower
from foregrad.torch_private.global_state import pytree_functions


def show_tuple(walk: KeyWalk, value: Any, place: str) -> str:
    """A tuple, or an object of a class made from it."""
    return f"({_items(walk, tuple.__iter__(value), place)}){_extra(walk, value, tuple, place)}"


def show_list(walk: KeyWalk, value: Any, place: str) -> str:
    return f"[{_items(walk, list.__iter__(value), place)}]{_extra(walk, value, list, place)}"


def show_deque(walk: KeyWalk, value: Any, place: str) -> str:
    return f"deque[{_items(walk, value, place)}; {value.maxlen}]{_extra(walk, value, collections.deque, place)}"


def _items(walk: KeyWalk, items: Iterable[Any], place: str) -> str:
    return ", ".join([walk.show(item, f"{place}[{i}]") for i, item in enumerate(items)])


def show_dict(walk: KeyWalk, value: Any, place: str) -> str:
    """A dict in its order."""
    kind = next(base for base in (collections.OrderedDict, collections.defaultdict, dict) if isinstance(value, base))
    items = collections.OrderedDict.items(value) if kind is collections.OrderedDict else dict.items(value)
    text = f"{{{show_entries(walk, items, place)}}}"
    if kind is collections.defaultdict:
        text += f" default {walk.show(value.default_factory, f'{place}.default_factory')}"
    return text + _extra(walk, value, dict if type(value) is dict else kind, place, is_shown=kind is not dict)


def show_entries(walk: KeyWalk, items: Iterable[tuple[Any, Any]], place: str) -> str:
    parts = []
    for key, item in items:
        name = walk.show(key, f"{place} key")
        parts.append(f"{name}: {walk.show(item, f'{place}[{name}]')}")
    return ", ".join(parts)


def show_set(walk: KeyWalk, value: Any, place: str) -> str:
    """A set, whose order differs from process to process."""
    if any(not isinstance(item, _SORTABLE) for item in value):
        walk.doubt(f"{place} is a set of objects, which come in another order in each process")
    items = ", ".join(sorted(walk.show(item, f"{place} item") for item in value))
    base = frozenset if isinstance(value, frozenset) else set
    return f"{base.__name__}{{{items}}}{_extra(walk, value, base, place)}"


_SORTABLE = (bool, int, float, complex, str, bytes, type(None), tuple, frozenset, torch.dtype, enum.Enum, type)


def _show_scalar(base: Any) -> Shower:
    """A number or text of a class of its own."""

    def show(walk: KeyWalk, value: Any, place: str) -> str:
        return f"{base.__repr__(value)}{_extra(walk, value, base, place)}"

    return show


def _extra(walk: KeyWalk, value: Any, base: type, place: str, *, is_shown: bool = False) -> str:
    """What an object of a class made from a built-in one has beside what that one has."""
    cls = type(value)
    if cls is base:
        return f" {base.__qualname__}" if is_shown else ""
    return f" of {walk.kind(cls)}{_attributes(walk, value, place)}"


# -- objects ------------------------------------------------------------------------------------------------


def show_object(walk: KeyWalk, value: Any, place: str) -> str:
    """An object: its class, and all its attributes."""
    cls = type(value)
    if _has_hidden_state(cls):
        walk.doubt(f"{place} is a {cls.__module__}.{cls.__qualname__}, in which the key cannot look")
        return f"<{cls.__module__}.{cls.__qualname__}>"
    if cls.__module__.partition(".")[0] == "foregrad" and "_target" in _dict_of(value):
        return f"<compiled {walk.show(_dict_of(value)['_target'], f'{place}._target')}>"
    functions = [walk.show(f, f"the flattening of {place}") for f in pytree_functions(cls)]
    return f"<{walk.kind(cls)}{_attributes(walk, value, place)}{' '.join(['', *functions])}>"


def _attributes(walk: KeyWalk, value: Any, place: str) -> str:
    parts = [show_entry(walk, k, v, place) for k, v in _dict_of(value).items() if k not in _HASHES]
    for cls in type(value).__mro__:
        for name in slots_of(cls):
            missing: Any = _MISSING
            found = _read_slot(cls, name, value, missing)
            parts += [] if found is missing else [show_entry(walk, name, found, place)]
    return "".join(f" {part}" for part in parts)


#: Where transformers notes the hash of a text, which is another one in each process; if read, it is in the read state.
_HASHES = frozenset({"_original_object_hash"})


def _dict_of(value: Any) -> Any:
    """The attributes of an object, whatever its class makes of a question for them."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}


def _read_slot(cls: type, name: str, value: Any, missing: Any) -> Any:
    try:
        return vars(cls)[name].__get__(value)
    except AttributeError:
        return missing


def show_entry(walk: KeyWalk, name: Any, value: Any, place: str) -> str:
    return f"{name if str(name).isidentifier() else repr(name)}={walk.show(value, f'{place}.{name}')}"


_MISSING = object()


def slots_of(cls: type) -> list[str]:
    """The attributes that objects of a class of Python's have beside their dict."""
    if cls in _BASES or not cls.__flags__ & (1 << 9):
        return []
    return [name for name, one in vars(cls).items() if isinstance(one, types.MemberDescriptorType)]


#: Built-in classes of whose objects nothing is hidden.
_BASES: tuple[type, ...] = (
    object,
    dict,
    list,
    tuple,
    set,
    frozenset,
    int,
    float,
    complex,
    str,
    bytes,
    collections.OrderedDict,
)
_BASES += (collections.defaultdict, collections.deque, types.SimpleNamespace, BaseException)


_hides: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def _has_hidden_state(cls: type) -> bool:
    """Whether objects of a class are larger than what can be seen of them."""
    if cls not in _hides:
        _hides[cls] = _is_larger(cls)
    return _hides[cls]


def _is_larger(cls: type) -> bool:
    base = next(b for b in cls.__mro__ if b in _BASES)
    if base is BaseException:
        return False
    if cls.__itemsize__:  # as many of something as there are: those of a built-in base are shown
        return bool(cls.__itemsize__ != base.__itemsize__)
    seen = sum(len(slots_of(c)) for c in cls.__mro__ if c not in _BASES)
    seen += (cls.__dictoffset__ > 0) - (base.__dictoffset__ > 0)
    seen += (cls.__weakrefoffset__ > 0) - (base.__weakrefoffset__ > 0)
    return cls.__basicsize__ > base.__basicsize__ + 8 * seen


# -- others -------------------------------------------------------------------------------------------------


def _show_enum(walk: KeyWalk, value: enum.Enum, place: str) -> str:
    return f"<{walk.kind(type(value))} {value.name}={walk.show(value.value, f'{place}.value')}>"


def _show_array(walk: KeyWalk, value: Any, place: str) -> str:
    if value.dtype.hasobject:
        return f"array{value.shape} {walk.show(value.tolist(), place)}"
    data = np.ascontiguousarray(value).tobytes()
    kind = f"array {value.dtype.str}{list(value.shape)} {value.strides} {type(value).__qualname__}"
    return walk.long(data, kind) if len(data) > 64 else f"<{kind} {data.hex()}>"


def _show_numpy_function(walk: KeyWalk, value: Any, place: str) -> str:
    """A function of numpy's own; others of its kinds may hide any function."""
    if getattr(np, value.__name__, None) is not value:
        walk.doubt(f"{place} is a {type(value).__qualname__}, in which the key cannot look")
    walk.kind(np.ndarray)
    return f"<numpy {value.__name__}>"


def _show_getter(walk: KeyWalk, value: Any, place: str) -> str:
    """`operator.itemgetter(1)` and the like; those that ask for attributes may ask for any."""
    kind, *given = value.__reduce__()
    return f"<{walk.show(kind, place)} {walk.show(given, place)}>"


def _show_weak(walk: KeyWalk, value: Any, place: str) -> str:
    """A weak reference is fine to something that is held elsewhere, too."""
    target = value()
    known = walk.first_place(target)
    if known is None:
        walk.doubt(f"{place} is a weak reference, which may break at any time")
    return f"<weak reference to {known}>"


def _show_field(walk: KeyWalk, value: Any, place: str) -> str:
    names = ("name", "type", "default", "default_factory", "init", "repr", "hash", "compare", "kw_only", "metadata")
    given = {k: getattr(value, k) for k in names}
    shown = {k: v for k, v in given.items() if v is not dataclasses.MISSING}
    return f"<field {', '.join(show_entry(walk, k, v, place) for k, v in shown.items())}>"


def _show_path(walk: KeyWalk, value: PurePath, place: str) -> str:
    walk.doubt(f"{place} is the path of a file, which may be read")
    return f"<path {str(value)!r}>"


def _show_logger(walk: KeyWalk, value: Any, place: str) -> str:
    flags = (value.level, value.getEffectiveLevel(), value.disabled, value.propagate, value.manager.disable)
    return f"<logger {value.name} {flags} {walk.show(value.filters, f'{place}.filters')}>"


def _show_masked(walk: KeyWalk, value: Any, place: str) -> str:
    """A masked array: data, mask, and what stands for what is masked."""
    parts = (np.asarray(value.data), np.asarray(value.mask), value.fill_value, value.hardmask)
    return f"<masked {walk.show(parts, place)}>"


def _show_dtype(walk: KeyWalk, value: Any, place: str) -> str:
    return f"<{value!r} {walk.show(dict(value.metadata), place)}>" if value.metadata else repr(value)


def _show_alias(walk: KeyWalk, value: Any, place: str) -> str:
    """`list[int]`, `int | str`: what it is made of."""
    origin = getattr(value, "__origin__", None)
    return f"<{type(value).__qualname__} {walk.show((origin, value.__args__), place)}>"


def _show_type_variable(walk: KeyWalk, value: Any, place: str) -> str:
    parts = (value.__bound__, value.__constraints__, value.__covariant__, value.__contravariant__)
    return f"<{value.__name__} {walk.show(parts, place)}>"


def _show_exception(walk: KeyWalk, value: BaseException, place: str) -> str:
    """An exception: its class, arguments and attributes. Where it was raised is not looked at."""
    if value.__traceback__ is not None:
        walk.doubt(f"{place} is an exception that was raised, and knows the lines where")
    held = (value.args, value.__cause__, value.__context__)
    return f"<{walk.kind(type(value))} {walk.show(held, place)}{_attributes(walk, value, place)}>"


def _by(text: Any) -> Shower:
    return lambda walk, value, place: str(text(value))


def _unseen(what: str) -> Shower:
    def show(walk: KeyWalk, value: Any, place: str) -> str:
        walk.doubt(f"{place} is {what}")
        return f"<{type(value).__qualname__}>"

    return show


_ALIASES = (type(list[int]), type(int | str))

VALUES: dict[type, Shower] = {
    **{kind: _show_scalar(kind) for kind in (int, float, complex, str, bytes)},
    bool: _by(repr),
    tuple: show_tuple,
    frozenset: show_set,
    enum.Enum: _show_enum,
    slice: lambda w, v, p: f"slice({w.show((v.start, v.stop, v.step), p)})",
    torch.device: lambda w, v, p: f"<device {w.device(v)}>",
    torch.memory_format: _by(repr),
    torch.finfo: _by(repr),
    torch.iinfo: _by(repr),
    re.Pattern: lambda w, v, p: f"<pattern {w.show((v.pattern, v.flags), p)}>",
    np.dtype: _show_dtype,
    np.generic: lambda w, v, p: f"<{v.dtype.str} {v.tobytes().hex()}>" if not v.dtype.hasobject else repr(v),
    np.ufunc: _show_numpy_function,
    type(np.mean): _show_numpy_function,
    **dict.fromkeys((operator.itemgetter, operator.attrgetter, operator.methodcaller), _show_getter),
    dataclasses.Field: _show_field,
    logging.Logger: _show_logger,
    type(threading.Lock()): _by(lambda v: "<lock>"),
    type(threading.RLock()): _by(lambda v: "<lock>"),
    torch.utils.hooks.RemovableHandle: _by(lambda v: "<handle>"),
    type(NotImplemented): _by(repr),
    **dict.fromkeys(_ALIASES, _show_alias),
    TypeVar: _show_type_variable,
}

OBJECTS: dict[type, Shower] = {
    object: show_object,
    list: show_list,
    dict: show_dict,
    set: show_set,
    collections.deque: show_deque,
    bytearray: lambda w, v, p: w.long(bytes(v), "bytearray"),
    array.array: lambda w, v, p: w.long(v.tobytes(), f"array {v.typecode}"),
    types.MappingProxyType: lambda w, v, p: f"<view {w.show(dict(v), p)}>",
    np.ndarray: _show_array,
    np.ma.MaskedArray: _show_masked,
    np.memmap: _show_array,
    BaseException: _show_exception,
    weakref.ref: _show_weak,
    PurePath: _show_path,
    torch.Generator: _unseen("a generator of random numbers, whose state the key does not see"),
    types.GeneratorType: _unseen("a generator, and how far it has run is not seen"),
    types.CoroutineType: _unseen("a coroutine, and how far it has run is not seen"),
}

#: Classes of which users make their own, and nothing of these is left out.
WHOLE: tuple[type, ...] = (
    object,
    int,
    float,
    complex,
    str,
    bytes,
    tuple,
    list,
    dict,
    set,
    frozenset,
    collections.deque,
    BaseException,
)
WHOLE += (enum.Enum,)
