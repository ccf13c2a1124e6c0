"""Paths to the leaves of a pytree, also in containers that were registered without keys. Checked against torch 2.13."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._pytree import (
    SUPPORTED_NODES,
    SequenceKey,
    TreeSpec,
    _get_node_type,
    tree_flatten,
)

__all__ = ["tree_flatten_with_path"]

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
