"""Loaded: modules of libraries that captures and compilers have loaded, and that nobody has changed since.

A process which finds its programs in a cache does not load them. So what is in them is in no key, nor what they have
put into others when they were loaded.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from foregrad.cache.key.libraries import library_of

_known: dict[str, tuple[Any, ...]] = {}  # by the name of a module: the values of its variables, when it was loaded


def note_loaded(before: frozenset[str]) -> None:
    """Take the modules that are there now, and were not before, for the work of captures."""
    for name, module in list(sys.modules.items()):
        is_new = name not in before and name not in _known and issubclass(type(module), ModuleType)
        if is_new and library_of(name) is not None:
            _known[name] = tuple(vars(module).values())


def loaded_by_captures() -> frozenset[str]:
    """Modules that captures have loaded, with the variables that they had then."""
    return frozenset(name for name, values in list(_known.items()) if _is_same(sys.modules.get(name), values))


def _is_same(module: Any, values: tuple[Any, ...]) -> bool:
    now = tuple(vars(module).values()) if issubclass(type(module), ModuleType) else ()
    return len(now) == len(values) and all(one is before for one, before in zip(now, values, strict=True))
