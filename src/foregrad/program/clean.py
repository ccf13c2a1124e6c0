"""Remove what nothing needs: pure ops whose results are not used."""

from __future__ import annotations

import operator

import torch
from torch import fx

from foregrad.functionalize.variants import Pure
from foregrad.record.ghosts import kind_of
from foregrad.substrate import OpOverload

aten = torch.ops.aten
_CHECKS = {aten._assert_async.default, aten._assert_async.msg, aten._assert_tensor_metadata.default}


def clean(graph: fx.Graph) -> None:
    """Drop unused pure ops; random ops stay, since each draw moves the generator, and so do ops with effects."""
    for node in reversed(graph.nodes):
        if not node.users and node.op in ("call_function", "get_attr") and not has_effect(node):
            graph.erase_node(node)


def has_effect(node: fx.Node) -> bool:
    """Whether running an op does more than give a value."""
    func = node.target.op if isinstance(node.target, Pure) else node.target
    if not isinstance(func, OpOverload):
        return False
    return is_random(func) or func in _CHECKS or not func._schema.returns


def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def is_view(node: fx.Node) -> bool:
    """Whether a node only looks at the memory of its argument."""
    if node.target is operator.getitem:
        return isinstance(node.args[0], fx.Node) and is_view(node.args[0])
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return False
    return kind_of(node.target).is_view and bool(node.all_input_nodes)  # not one of a Python number
