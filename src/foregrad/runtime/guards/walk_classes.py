"""Nodes of classes: the class itself, and of each of its bases the entries that code asks for."""

from __future__ import annotations

import gc
from typing import Any

from foregrad.core.real_class import is_a
from foregrad.process.process_variables import OF_THIS_PROCESS
from foregrad.runtime.guards.nodes import AttributesNode, ReadNode, Same
from foregrad.runtime.guards.python_objects import is_closed, is_made_by_python
from foregrad.runtime.guards.walk import GuardWalk, ObjectPart


def make_class(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    return class_node(walk, value) if is_a(value, type) else None


def class_node(walk: GuardWalk, kind: type) -> ReadNode:
    """A class, which must be the very same; what its objects are asked for is looked at."""
    metaclass: type = type(kind)
    for one in (*kind.__mro__, *metaclass.__mro__):
        if is_made_by_python(one) and id(one) not in walk.classes and not walk.boundary.is_outside(one.__module__):
            walk.classes[id(one)] = one
            _entries(walk, one)
    return Same(kind.__qualname__, kind)


#: What is there while some thread records.
_REPLACED: frozenset[str] = frozenset({"apply"})


def _entries(walk: GuardWalk, kind: type) -> None:
    entries = gc.get_referents(vars(kind))[0]  # the dict behind the proxy
    closed = is_closed(kind.__module__)
    names = walk.asked if closed else walk.names
    home = kind.__module__ if isinstance(kind.__module__, str) else ""
    leaves_out = _REPLACED if kind.__name__ == "_SingleLevelFunction" else OF_THIS_PROCESS.get(home, frozenset())
    holder = AttributesNode(kind.__qualname__, entries, names, dunders=True, leaves_out=leaves_out, home=home)
    parts = [ObjectPart(holder.inner(key), entries[key], entries, key) for key in holder.keys]
    walk.hold(holder, parts, closed=closed)
