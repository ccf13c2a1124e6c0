"""Compilable: which graphs a compiler of loops is right for."""

from __future__ import annotations

import operator

import torch
from torch import fx

from foregrad.backends.eager import ASKS_GRAD_MODE
from foregrad.backends.numbers import can_be_in_tensors, takes_numbers
from foregrad.functionalize.replay import Replay, rng_state
from foregrad.functionalize.variants import Pure
from foregrad.program.clean import has_effect, is_view, op_of
from foregrad.record.impure import effect_of
from foregrad.substrate import lazy_graph_module

aten = torch.ops.aten
#: These ask where a tensor lies in memory, take one whose size only the kernel knows, or have no name in Python.
_BY_THEMSELVES = {
    aten.as_strided.default,
    aten.as_strided_scatter.default,
    aten.mkldnn_rnn_layer_backward.default,
    getattr(aten.random, "from"),  # a keyword of Python's, which FX cannot write
}


def can_compile(graph: fx.GraphModule) -> bool:
    """Whether a compiler of loops is right for a graph: not where places in memory, complex numbers or the grad mode
    matter, or effects, and not if it only makes views."""
    nodes = [n for n in graph.graph.nodes if n.op == "call_function"]
    return any(not is_view(n) for n in nodes) and not any(is_opaque(n) for n in graph.graph.nodes)


def with_memory(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph with zeros in memory for tensors of zeros that have none, which loops could not read."""
    if not any(n.target is aten._efficientzerotensor.default for n in module.graph.nodes):
        return module
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.target is aten._efficientzerotensor.default:
            copies[node].target = aten.zeros.default
    constants = {str(n.target): getattr(module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    return lazy_graph_module(constants, graph, "Graph")


def _must_run(node: fx.Node) -> bool:
    """Whether a compiler would drop or change what an op does beside giving a value: effects, draws that nobody uses,
    draws from a generator of the user's."""
    if not has_effect(node):
        return False
    func = op_of(node)
    draws_from = [n for n in node.all_input_nodes if "generator" in n.meta]
    return not node.users or bool(draws_from) or (func is not None and effect_of(func) is not None)


def is_opaque(node: fx.Node) -> bool:
    """Whether no loop can stand for an op."""
    spec = node.meta.get("spec")
    return (
        node.target in _BY_THEMSELVES
        or node.target in ASKS_GRAD_MODE
        or isinstance(node.target, (Pure, Replay))
        or node.target is rng_state
        or _must_run(node)
        or (takes_numbers(node) and not can_be_in_tensors(node))
        or (spec is not None and node.target is not operator.getitem and spec.dtype.is_complex)
    )
