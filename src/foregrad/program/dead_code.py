"""Dead code elimination: pure ops whose results are not used."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from foregrad.functionalize.pure_variants import Pure
from foregrad.record.ghosts.table import kind_of
from foregrad.record.impure import draws, effect_of, only_checks
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten


def clean(graph: fx.Graph) -> None:
    """Drop unused pure ops; random ops stay, since each draw moves the generator, and so do ops with effects."""
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node):
            graph.erase_node(node)


def take_over(graph: fx.Graph) -> None:
    """Let a gradient that nobody else sees be the .grad itself, as the engine does, and not a copy of it."""
    results: Any = graph.output_node().args[0]
    given_out = {memory_of(r) for r in results if isinstance(r, fx.Node)}
    for node in list(graph.nodes):
        if node.target is not aten.copy.default or not isinstance(node.args[1], fx.Node):
            continue
        empty, value = node.args
        root = memory_of(value)
        is_empty = isinstance(empty, fx.Node) and empty.target is aten.new_empty_strided.default
        is_alike = value.meta.get("spec") == node.meta.get("spec") and root.op == "call_function"
        if is_empty and is_alike and root not in given_out and _fills(value, root) and _is_read_by(root, empty, node):
            if node in given_out:
                given_out.add(root)
            node.replace_all_uses_with(value)
            graph.erase_node(node)


def _is_read_by(root: fx.Node, *readers: Any) -> bool:
    """Whether nothing else reads a value, itself or through views: what backward keeps must not become a .grad."""
    stack = [root]
    while stack:
        for user in stack.pop().users:
            if is_view(user):
                stack.append(user)
            elif user not in readers:
                return False
    return True


def _fills(value: fx.Node, root: fx.Node) -> bool:
    """Whether a view shows all of the memory that it lies in."""
    spec, whole = value.meta["spec"], root.meta.get("spec")
    return whole is not None and spec.is_dense and spec.num_bytes == whole.num_bytes


def memory_of(node: fx.Node) -> fx.Node:
    """The value that a view, or a view of a view, looks at."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def copied(node: fx.Node, emit: Callable[..., fx.Node]) -> fx.Node:
    """A value in memory of its own: of a view, the same view of a copy of what it looks at, as in eager."""
    if not is_view(node):
        return emit(aten.clone.default, (node,), node.meta.get("spec"))
    whole = node.all_input_nodes[0]
    copy = copied(whole, emit)
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda one: copy if one is whole else one)
    return emit(node.target, args, node.meta.get("spec"), kwargs)


def has_effect(node: fx.Node) -> bool:
    """Whether running an op does more than give a value."""
    func = op_of(node)
    return func is not None and (is_draw(node) or effect_of(func) is not None)


def checks_only(node: fx.Node) -> bool:
    """Whether the effect of an op is an error, or none."""
    return isinstance(node.target, OpOverload) and only_checks(node.target)


def is_draw(node: fx.Node) -> bool:
    """Whether a node draws random numbers."""
    func = op_of(node)
    return func is not None and draws(func, node.args, node.kwargs)


def maker_of(node: fx.Node) -> fx.Node:
    """The node that computes a value: itself, or the one of whose results it is one."""
    while node.target is operator.getitem and not is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def op_of(node: fx.Node) -> OpOverload | None:
    """The op that a node runs, in its pure form or as it is."""
    func = node.target.op if isinstance(node.target, Pure) else node.target
    return func if isinstance(func, OpOverload) else None


def is_view(node: fx.Node) -> bool:
    """Whether a node only looks at the memory of its argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return kind_of(node.target).is_view and bool(node.all_input_nodes)  # not one of a Python number
