"""Pytrees: paths to leaves, also in containers that were registered without keys, and objects as nodes."""

from __future__ import annotations

import inspect
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import (
    SUPPORTED_NODES,
    GetAttrKey,
    SequenceKey,
    TreeSpec,
    _get_node_type,
    keystr,
    register_pytree_node,
    tree_flatten,
    tree_leaves,
    tree_map,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "TreeSpec",
    "containers_in",
    "keystr",
    "open_objects",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
]

Path = tuple[Any, ...]
IsLeaf = Callable[[Any], bool] | None


def tree_flatten_with_path(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[tuple[Path, Any]], TreeSpec]:
    """The leaves of a tree with the path to each, and its structure; children without keys go by their numbers."""
    leaves, structure = tree_flatten(tree, is_leaf)
    return list(zip(_paths((), tree, is_leaf), leaves, strict=True)), structure


def _paths(path: Path, tree: Any, is_leaf: IsLeaf) -> Iterator[Path]:
    node = None if is_leaf is not None and is_leaf(tree) else SUPPORTED_NODES.get(_get_node_type(tree))
    if node is None:
        yield path
        return
    children, _ = node.flatten_fn(tree)
    keyed = [] if node.flatten_with_keys_fn is None else node.flatten_with_keys_fn(tree)[0]
    keys = [key for key, _ in keyed] if len(keyed) == len(children) else [SequenceKey(i) for i in range(len(children))]
    for key, child in zip(keys, children, strict=True):
        yield from _paths((*path, key), child, is_leaf)


@dataclass(frozen=True, eq=False)
class ObjectNode:
    """An object of a Python class as a node of a tree; unflattened, it is such an object again, made without its
    `__init__`."""

    kind: type
    names: tuple[str, ...]
    values: tuple[Any, ...]

    @staticmethod
    def make(values: Any, made_of: tuple[type, tuple[str, ...]]) -> Any:
        kind, names = made_of
        made: Any = object.__new__(kind)
        slots = _slots(kind)
        for name, value in zip(names, values, strict=True):
            if name in slots:
                slots[name].__set__(made, value)
            else:
                made.__dict__[name] = value
        return made


register_pytree_node(
    ObjectNode,
    lambda opened: (list(opened.values), (opened.kind, opened.names)),
    ObjectNode.make,
    flatten_with_keys_fn=lambda opened: (
        [(GetAttrKey(name), value) for name, value in zip(opened.names, opened.values, strict=True)],
        (opened.kind, opened.names),
    ),
)


def open_objects(
    tree: Any, is_new: Callable[[Any], bool], is_ghost: Callable[[Any], bool], is_leaf: IsLeaf = None
) -> Any:
    """The same tree with objects in it as nodes: those that are new, each at its first place, if they are dataclasses
    or hold ghosts. Any other may be kept somewhere, and would have to be the very same."""
    seen: set[int] = set()

    def opened(leaf: Any) -> Any:
        if not _is_plain(leaf) or id(leaf) in seen or not is_new(leaf) or is_new(type(leaf)):
            return leaf
        seen.add(id(leaf))
        held = _attributes(leaf)
        node = ObjectNode(type(leaf), tuple(held), tuple(map(within, held.values())))
        is_made_again = is_dataclass(leaf) or any(map(is_ghost, tree_leaves(node, is_leaf)))
        return node if is_made_again else leaf

    def within(tree: Any) -> Any:
        has_any = any(map(_is_plain, tree_leaves(tree, is_leaf)))
        return tree_map(opened, tree, is_leaf=is_leaf) if has_any else tree

    return within(tree)


def containers_in(tree: Any, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """A tree and all containers in it."""
    node = None if is_leaf is not None and is_leaf(tree) else SUPPORTED_NODES.get(_get_node_type(tree))
    if node is not None:
        yield tree
        for child in node.flatten_fn(tree)[0]:
            yield from containers_in(child, is_leaf)


#: What is more than its attributes: classes, modules, and numbers that are symbols.
_NO_OBJECTS = (type, nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)


def _is_plain(leaf: Any) -> bool:
    """Whether a value is an object of a Python class, and has nothing but its attributes."""
    made_by: Any = type(leaf).__new__
    if made_by is not object.__new__ or isinstance(leaf, _NO_OBJECTS):
        return False
    kinds = type(leaf).__mro__[:-1]
    names = [name for kind in kinds for name in _slots_of(kind)]
    is_referred_to = hasattr(type(leaf), "__weakref__") and weakref.getweakrefcount(leaf) > 0
    has_all = all(map(_has_attributes_only, kinds)) and len(names) == len(set(names)) and _has_plain_dict(leaf)
    return has_all and not is_referred_to


def _has_attributes_only(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # made by a `class` statement


def _has_plain_dict(leaf: Any) -> bool:
    """Whether attributes are where they usually are, by names."""
    table = inspect.getattr_static(type(leaf), "__dict__", None)
    if "__dict__" in dir(leaf) and not isinstance(table, (types.GetSetDescriptorType, types.MappingProxyType)):
        return False
    return all(type(name) is str for name in getattr(leaf, "__dict__", ()))


def _slots_of(kind: type) -> list[str]:
    return [name for name, one in vars(kind).items() if isinstance(one, types.MemberDescriptorType)]


def _slots(kind: type) -> dict[str, Any]:
    """The slots of a class and of its bases, by the names under which they are stored."""
    return {name: vars(one)[name] for one in kind.__mro__[:-1] for name in _slots_of(one)}


def _attributes(leaf: Any) -> dict[str, Any]:
    """What an object holds, without a property or other code of its class."""
    found: dict[str, Any] = {}
    for name, slot in _slots(type(leaf)).items():
        try:
            found[name] = slot.__get__(leaf)
        except AttributeError:  # it was never set
            continue
    return {**found, **getattr(leaf, "__dict__", {})}
