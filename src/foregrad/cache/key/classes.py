"""Classes: what objects of a class can do, as ingredients."""

from __future__ import annotations

import abc
import enum
import functools
import operator
import sys
import types
from collections.abc import Mapping
from typing import Any, Generic, Protocol

import torch

from foregrad.cache.key.bytecode import facts_of
from foregrad.cache.key.libraries import SourceLibrary, library_of, library_of_class, library_of_function
from foregrad.cache.key.unhashable_reads import doubt_about, words
from foregrad.cache.key.walk import KeyWalk, Shower
from foregrad.torch_private.global_state import is_global_hooks, pytree_functions, registered_with


def show_class(walk: KeyWalk, cls: type, place: str) -> str:
    """A class that code can use: it may make objects of it."""
    functions = [walk.show(one, f"the flattening of {place}") for one in pytree_functions(cls)]
    text = " ".join([kind_of(walk, cls), *functions])
    walk.is_dynamic |= cls in (operator.attrgetter, operator.methodcaller)
    if library_of_class(cls) is None:
        name, is_new = walk.name(f"making of {text}", cls)
        if is_new:
            for base in cls.__mro__:
                if library_of_class(base) is None:
                    for key in [key for key in _MAKING if key in vars(base)]:
                        walk.queue.append(functools.partial(walk.show, vars(base)[key], f"{name}.{key}"))
    return text


#: What runs when an object is made, copied, printed or saved, and the names by which code can have that done.
_MAKING = dict.fromkeys(words("__init__ __new__ __post_init__ __init_subclass__ __set_name__"), ("type", "__class__"))
_COPYING = dict.fromkeys(
    words("__reduce__ __reduce_ex__ __getstate__ __setstate__ __getnewargs__ __getnewargs_ex__"), ("copy", "deepcopy")
)
_SELDOM: dict[str, tuple[str, ...]] = {
    **_MAKING,
    **_COPYING,
    "extra_repr": ("str", "repr", "format", "print"),
    **dict.fromkeys(words("__del__ __sizeof__ __dir__ reset_parameters state_dict load_state_dict"), ()),
    **dict.fromkeys(words("_save_to_state_dict get_extra_state"), ("state_dict",)),
    **dict.fromkeys(words("_load_from_state_dict set_extra_state"), ("load_state_dict",)),
}

#: Methods that functions of Python call on what they are given, and the names of those functions.
_BY_LIBRARIES = {"close": ("closing",), "aclose": ("aclosing",)}
_PROTOCOLS = frozenset(
    words(
        "keys values items get read readline readlines readinto write writelines flush seek tell fileno append extend "
        "update copy default emit handle filter format acquire release send throw next"
    )
)

#: Parts of a class that say nothing of what its objects do.
_SKIPPED = words(
    "__doc__ __module__ __dict__ __weakref__ __qualname__ __firstlineno__ __static_attributes__ __abstractmethods__ "
    "_abc_impl __slotnames__ __annotations_cache__ __annotate_func__ __protocol_attrs__ __subclasshook__"
)


def kind_of(walk: KeyWalk, cls: type) -> str:
    """A class by its name. The user's own is looked at in full, later, and so is what was put into torch's."""
    library = library_of_class(cls)
    if library is not None:
        text = f"<{library.name} {cls.__module__}.{cls.__qualname__}>"
        _, is_new = walk.name(text, cls)
        if is_new:
            show_reference(walk, library, cls.__module__, cls.__qualname__)
            _look_for_patches(walk, cls)
        return text
    name, is_new = walk.name(f"class {cls.__module__}.{cls.__qualname__}", cls)
    if is_new:
        walk.queue.append(lambda: _look_at(walk, name, cls))
    return f"<{name}>"


def show_reference(walk: KeyWalk, library: SourceLibrary, module: str, name: str | None) -> None:
    """Take note of a library, and of a doubt about one of its names."""
    if library.name not in ("python", "torch", "foregrad"):
        walk.libraries[library.name] = library.identity
    reason = doubt_about(library.name, module, name.partition(".")[0]) if name is not None else None
    if reason is not None:
        walk.doubt(f"{walk.owner or 'the target'} uses {module}.{name}, which {reason}")


def _look_at(walk: KeyWalk, name: str, cls: type) -> None:
    """Bases and members of a class. Methods that only a name can call are looked into when code has that name."""
    before, walk.owner = walk.owner, name
    lines = [f"bases {', '.join(kind_of(walk, base) for base in cls.__bases__)}"]
    if type(cls) is not type:
        lines.append(f"metaclass {kind_of(walk, type(cls))}")
    for key in sorted(vars(cls)):
        if key not in _SKIPPED:
            lines.append(f"{key} = {_member(walk, name, cls, key)}")
    registered = registered_with(cls)
    if registered:
        lines.append(f"registered {sorted(walk.show(one, f'{name}.register') for one in registered)}")
    walk.add(name, "\n".join(lines))
    walk.owner = before


def _member(walk: KeyWalk, name: str, cls: type, key: str) -> str:
    value = vars(cls)[key]
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType) or _is_called_by_others(cls, key):
        return walk.show(value, f"{name}.{key}")
    if library_of_function(function) is not None:
        return walk.show(value, f"{name}.{key}")
    for asked in (key, *_SELDOM.get(key, ()), *_BY_LIBRARIES.get(key, ())):
        walk.dormant.append((asked, functools.partial(walk.show, value, f"{name}.{key}")))
    return f"{type(value).__name__} {facts_of(function.__code__).digest}"


def _is_called_by_others(cls: type, key: str) -> bool:
    """Whether Python or a library calls a method by itself."""
    if key in _SELDOM:
        return False
    if key in _PROTOCOLS or (key.startswith("__") and key.endswith("__")):
        return True
    bases = [base for base in cls.__mro__ if base is not object and library_of_class(base) is not None]
    return any(key in vars(base) or base not in _QUIET for base in bases)


#: Classes of libraries that call no method of a subclass which they do not have themselves.
_QUIET = (torch.nn.Module, *torch.autograd.Function.__mro__, enum.Enum, abc.ABC, Generic, Protocol)


# -- what was put into classes and modules of torch's -------------------------------------------------------

_clean: dict[int, tuple[Any, tuple[Any, ...], list[tuple[str, Any]]]] = {}


def patches(home: Any) -> list[tuple[str, Any]]:
    """Functions in a class or module of a library that are not the library's own."""
    members: Mapping[str, Any] = vars(home)
    codes = [one.__code__ for one in members.values() if type(one) is types.FunctionType]
    now = (*members.values(), *codes)
    known = _clean.get(id(home))
    if known is None or len(known[1]) != len(now) or not all(map(operator.is_, known[1], now)):
        found = [(key, value) for key, value in members.items() if _is_foreign(value)]
        known = _clean[id(home)] = (home, now, found)
    return known[2]


def _is_foreign(value: Any) -> bool:
    """Code that is no library's, or an object of a class that is no library's."""
    if isinstance(value, (classmethod, staticmethod, types.MethodType)):
        value = value.__func__
    if isinstance(value, property):
        value = value.fget
    if isinstance(value, types.FunctionType):
        return library_of_function(value) is None
    if isinstance(value, type):
        return library_of(value.__module__) is None
    if isinstance(value, types.ModuleType):
        return type(value) is types.ModuleType and library_of(value.__name__) is None
    return library_of(type(value).__module__) is None


_CODE = (types.FunctionType, type, types.ModuleType, property, classmethod, staticmethod, types.MethodType)


def _look_for_patches(walk: KeyWalk, cls: type) -> None:
    for base in cls.__mro__:
        if base is object or not base.__flags__ & (1 << 9) or library_of_class(base) is None:
            continue
        name = f"{base.__module__}.{base.__qualname__}"
        for home, title in ((base, name), (sys.modules[base.__module__], base.__module__)):
            if walk.name("patches", home)[1]:
                show_patches(walk, home, title)
                show_registered(walk, home, title)
        data = {k: v for k, v in vars(base).items() if isinstance(v, _DATA) and not k.startswith("__")}
        if data and walk.name("members", base)[1]:
            walk.add(f"members of {name}", walk.show(data, name))


#: What a class may have beside methods.
_DATA = (bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))


def show_patches(walk: KeyWalk, home: Any, title: str) -> None:
    """What users have put into a class or module of a library. Code of the library may ask anything of it."""
    for key, value in patches(home):
        if key not in _SKIPPED:
            walk.names.update(vars(value) if isinstance(value, types.ModuleType) else ())
            if not isinstance(value, _CODE):
                walk.doubt(f"{title}.{key} was replaced by an object of {type(value).__qualname__}")
            walk.add(f"patched {title}.{key}", walk.show(value, f"{title}.{key}"))


def show_foreign(walk: KeyWalk, value: Any, place: str) -> None:
    """Something of the user's inside of a library. Code of the library may ask anything of it."""
    if issubclass(type(value), types.ModuleType):
        walk.names.update(vars(value))
    walk.add(f"patched {place}", walk.show(value, place))


def show_registered(walk: KeyWalk, home: Any, title: str) -> None:
    """Functions that users have registered with a library: in a dict, or in one that an object or its class has."""
    for name, value in vars(home).items():
        if is_global_hooks(title, name):  # which are in every key
            continue
        if isinstance(value, dict):
            tables = [value]
        elif isinstance(value, _NO_HOLDERS) or not hasattr(type(value), "__dict__"):
            continue
        else:
            tables = [*getattr(value, "__dict__", {}).values(), *vars(type(value)).values()]
        for number, table in enumerate(tables):
            found = table.items() if isinstance(table, dict) and name not in _SKIPPED else ()
            for key, one in found:
                if isinstance(one, types.FunctionType) and library_of_function(one) is None:
                    walk.add(f"registered {title}.{name} {number}: {key}", walk.show(one, f"{title}.{name}"))


_NO_HOLDERS = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType, str, bytes, int, float, tuple)

CLASSES: dict[type, Shower] = {type: show_class}
