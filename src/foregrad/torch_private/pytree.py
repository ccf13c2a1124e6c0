"""Pytrees: paths to leaves, also in containers that were registered without keys, and dataclasses as nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

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
    "open_dataclasses",
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


@dataclasses.dataclass(frozen=True, eq=False)
class DataclassNode:
    """A dataclass as a node of a tree; unflattened, it is such an object again, made without its `__init__`."""

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
    DataclassNode,
    lambda opened: (list(opened.values), (opened.kind, opened.names)),
    DataclassNode.make,
    flatten_with_keys_fn=lambda opened: (
        [(GetAttrKey(name), value) for name, value in zip(opened.names, opened.values, strict=True)],
        (opened.kind, opened.names),
    ),
)


def open_dataclasses(tree: Any, is_new: Callable[[Any], bool], is_leaf: IsLeaf = None) -> Any:
    """The same tree with the dataclasses in it as nodes: those that are new, and each at its first place."""
    seen: set[int] = set()

    def opened(leaf: Any) -> Any:
        if not _is_plain(leaf) or id(leaf) in seen or not is_new(leaf):
            return leaf
        seen.add(id(leaf))
        every = dict.fromkeys([*(field.name for field in dataclasses.fields(leaf)), *getattr(leaf, "__dict__", ())])
        names = tuple(name for name in every if hasattr(leaf, name))
        return DataclassNode(type(leaf), names, tuple(within(getattr(leaf, name)) for name in names))

    def within(tree: Any) -> Any:
        has_any = any(map(_is_plain, tree_leaves(tree, is_leaf)))
        return tree_map(opened, tree, is_leaf=is_leaf) if has_any else tree

    return within(tree)


def _is_plain(leaf: Any) -> bool:
    """Whether a value is an object of a dataclass that has nothing but its attributes."""
    return dataclasses.is_dataclass(leaf) and type(leaf).__new__ is object.__new__ and not isinstance(leaf, type)
