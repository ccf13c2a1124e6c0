"""Pytrees: paths to leaves, also in containers that were registered without keys, and objects as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
        for name, value in zip(names, values, strict=True):
            object.__setattr__(made, name, value)
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


def open_objects(tree: Any, is_new: Callable[[Any], bool], is_leaf: IsLeaf = None) -> Any:
    """The same tree with the objects in it as nodes: those that are new, and each at its first place."""
    seen: set[int] = set()

    def opened(leaf: Any) -> Any:
        if not _is_plain(leaf) or id(leaf) in seen or not is_new(leaf) or is_new(type(leaf)):
            return leaf
        seen.add(id(leaf))
        names = tuple(dict.fromkeys([*_slots(type(leaf)), *getattr(leaf, "__dict__", ())]))
        held = {name: object.__getattribute__(leaf, name) for name in names if _has(leaf, name)}
        return ObjectNode(type(leaf), tuple(held), tuple(map(within, held.values())))

    def within(tree: Any) -> Any:
        has_any = any(map(_is_plain, tree_leaves(tree, is_leaf)))
        return tree_map(opened, tree, is_leaf=is_leaf) if has_any else tree

    return within(tree)


#: What is more than its attributes: classes, modules, and numbers that are symbols.
_NO_OBJECTS = (type, nn.Module, torch.SymInt, torch.SymFloat, torch.SymBool)


def _is_plain(leaf: Any) -> bool:
    """Whether a value is an object of a Python class, and has nothing but its attributes."""
    made_by: Any = type(leaf).__new__
    is_one = made_by is object.__new__ and not isinstance(leaf, _NO_OBJECTS)
    return is_one and all(map(_has_attributes_only, type(leaf).__mro__[:-1]))


def _has_attributes_only(kind: type) -> bool:
    return bool(kind.__flags__ & (1 << 9))  # made by a `class` statement


def _slots(kind: type) -> list[str]:
    """The names of slots of a class and its bases, as they are stored."""
    found: list[str] = []
    for one in kind.__mro__:
        names = vars(one).get("__slots__", ())
        names = (names,) if isinstance(names, str) else names
        private = f"_{one.__name__.lstrip('_')}"
        found += [f"{private}{n}" if n.startswith("__") and not n.endswith("__") else n for n in names]
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _has(value: Any, name: str) -> bool:
    try:
        object.__getattribute__(value, name)
    except AttributeError:
        return False
    return True
