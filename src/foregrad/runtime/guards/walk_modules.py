"""Nodes of torch's modules: attributes that code asks for, parameters, buffers, children and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch

from foregrad.core.real_class import is_a
from foregrad.record.python.names_read import names_in
from foregrad.runtime.guards.nodes import AttributesNode, Entries, Hooks, Pinned, ReadNode, Same, read_field
from foregrad.runtime.guards.python_objects import has_own_getattr, slots_of
from foregrad.runtime.guards.walk import GuardWalk, ObjectPart
from foregrad.runtime.guards.walk_classes import class_node
from foregrad.torch_private.modules import HOOKS, TABLES

#: What every module has for itself.
_INTERNAL = frozenset(vars(torch.nn.Module())) - {"training"}

#: These look for one name in the tables, which other code has asked for.
_BY_NAME = frozenset({"__getattr__", "__setattr__", "__delattr__", "__init__", "__dir__", "_call_impl", "__setstate__"})


def make_torch_module(walk: GuardWalk, value: Any, name: str) -> ReadNode | None:
    if not is_a(value, torch.nn.Module):
        return None
    if is_a(value, torch.jit.ScriptModule):
        return Same(name, value)
    attributes = vars(value)
    everything = walk.reads.computed or has_own_getattr(type(value))
    names = None if everything else walk.asked
    holder = AttributesNode(name, attributes, names, leaves_out=_INTERNAL)
    parts = [ObjectPart(holder.inner(key), attributes[key], attributes, key) for key in holder.keys]
    walk.hold(holder, parts)
    iterated = _iterated(walk, type(value))
    for table in TABLES:
        _table(walk, attributes[table], name, None if everything or table in iterated else names)
    for hooks in HOOKS:
        if attributes[hooks]:
            node = Hooks(f"{name}.{hooks}", attributes[hooks])
            walk.hold(
                node, [ObjectPart(f"{node.name}[{i}]", hook) for i, hook in enumerate(attributes[hooks].values())]
            )
        else:
            walk.empty.append((f"{name}.{hooks}", attributes[hooks]))
    parts, getters = [ObjectPart(name, class_node(walk, type(value)))], [type]
    for key, member in slots_of(type(value)):
        if key != "_foregrad" and (names is None or key in names):
            getters.append(walk.getters.setdefault(member, member.__get__))
            held = read_field(getters[-1], value)
            parts.append(ObjectPart(f"{name}.{key}", held, value, key, is_attribute=True))
    return walk.hold(Pinned(name, value, getters), parts)


def _table(walk: GuardWalk, table: dict[str, Any], name: str, names: frozenset[str] | None) -> None:
    """Parameters, buffers or children: those that are asked for by name, or all in their order."""
    if not table:
        walk.empty.append((name, table))
        return
    holder = Entries(name, table) if names is None else AttributesNode(name, table, names)
    walk.hold(holder, [ObjectPart(f"{name}.{key}" if name else key, table[key], table, key) for key in holder.keys])


def _iterated(walk: GuardWalk, kind: type) -> frozenset[str]:
    """The tables of a module that functions of its class went through."""
    if kind not in walk.iterated:
        functions = [
            f for one in kind.__mro__ for f in vars(one).values() if isinstance(f, FunctionType) and walk.ran(f)
        ]
        asked = {n for f in functions if f.__name__ not in _BY_NAME for n in _attributes(f.__code__)}
        walk.iterated[kind] = frozenset(asked | walk.reads.tables) & {*TABLES}
    return walk.iterated[kind]


def _attributes(code: CodeType) -> Iterator[str]:
    yield from names_in(code).attributes
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _attributes(inner)
