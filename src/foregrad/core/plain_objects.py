"""Plain objects: objects of Python classes that are nothing but their attributes, read and made without their code."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

#: What is more than its attributes: classes, modules, and numbers that are symbols.
_NO_OBJECTS = (type, nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)


def is_plain(value: Any) -> bool:
    """Whether a value is an object of a Python class, and has nothing but its attributes."""
    made_by: Any = type(value).__new__
    if made_by is not object.__new__ or isinstance(value, _NO_OBJECTS):
        return False
    kinds = type(value).__mro__[:-1]
    names = [name for kind in kinds for name in _slots_of(kind)]
    is_referred_to = hasattr(type(value), "__weakref__") and weakref.getweakrefcount(value) > 0
    has_all = all(map(_has_attributes_only, kinds)) and len(names) == len(set(names)) and _has_plain_dict(value)
    return has_all and not is_referred_to


def held_by(value: Any) -> dict[str, Any]:
    """What an object holds, without a property or other code of its class."""
    found: dict[str, Any] = {}
    for name, slot in slots_of(type(value)).items():
        try:
            found[name] = slot.__get__(value)
        except AttributeError:  # it was never set
            continue
    return {**found, **getattr(value, "__dict__", {})}


def hold(value: Any, attributes: Mapping[str, Any]) -> None:
    """Give an object attributes, without code of its class."""
    slots = slots_of(type(value))
    for name, one in attributes.items():
        if name in slots:
            slots[name].__set__(value, one)
        else:
            value.__dict__[name] = one


def let_go(value: Any, names: tuple[str, ...]) -> None:
    """Take attributes from an object, without code of its class."""
    slots = slots_of(type(value))
    for name in names:
        if name in slots:
            slots[name].__delete__(value)
        else:
            del value.__dict__[name]


def attribute(value: Any, name: str) -> Any:
    """An attribute of an object, without code of its class."""
    slots = slots_of(type(value))
    return slots[name].__get__(value) if name in slots else value.__dict__[name]


def slots_of(kind: type) -> dict[str, Any]:
    """The slots of a class and of its bases, by the names under which they are stored."""
    found = _known.get(kind)
    if found is None:
        found = _known[kind] = {name: vars(one)[name] for one in kind.__mro__[:-1] for name in _slots_of(one)}
    return found


_known: weakref.WeakKeyDictionary[type, dict[str, Any]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> list[str]:
    if not _has_attributes_only(kind):
        return []
    return [name for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType)]


def _has_attributes_only(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # made by a `class` statement


def _has_plain_dict(value: Any) -> bool:
    """Whether attributes are where they usually are, by names."""
    table = inspect.getattr_static(type(value), "__dict__", None)
    if "__dict__" in dir(value) and not isinstance(table, (types.GetSetDescriptorType, types.MappingProxyType)):
        return False
    return all(type(name) is str for name in getattr(value, "__dict__", ()))
