"""Pytrees: paths to leaves, also in containers that were registered without keys, and objects as nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
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

from foregrad.core.plain_objects import held_by, hold, is_plain

__all__ = [
    "GivenObject",
    "Node",
    "ObjectNode",
    "TreeSpec",
    "keystr",
    "make_node",
    "node_of",
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
        hold(made, dict(zip(names, values, strict=True)))
        return made


@dataclass(frozen=True, eq=False)
class GivenObject(ObjectNode):
    """The same for an object that a function is given."""

    real: Any


for _kind in (ObjectNode, GivenObject):
    register_pytree_node(
        _kind,
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
        if not is_plain(leaf) or id(leaf) in seen or not is_new(leaf) or is_new(type(leaf)):
            return leaf
        seen.add(id(leaf))
        held = held_by(leaf)
        node = ObjectNode(type(leaf), tuple(held), tuple(map(within, held.values())))
        is_made_again = is_dataclass(leaf) or any(map(is_ghost, tree_leaves(node, is_leaf)))
        return node if is_made_again else leaf

    def within(tree: Any) -> Any:
        has_any = any(map(is_plain, tree_leaves(tree, is_leaf)))
        return tree_map(opened, tree, is_leaf=is_leaf) if has_any else tree

    return within(tree)


@dataclass(frozen=True, eq=False)
class Node:
    """A container that pytrees know: what it holds, and how to make one of its kind."""

    kind: type
    children: list[Any]
    context: Any

    def make(self, children: Any) -> Any:
        return make_node(self.kind, children, self.context)


def node_of(value: Any) -> Node | None:
    """A container as what it holds; None for what is none."""
    kind = _get_node_type(value)
    found = SUPPORTED_NODES.get(kind)
    return None if found is None else Node(kind, *found.flatten_fn(value))


def make_node(kind: type, children: Any, context: Any) -> Any:
    """A container of a kind that pytrees know."""
    return SUPPORTED_NODES[kind].unflatten_fn(children, context)
