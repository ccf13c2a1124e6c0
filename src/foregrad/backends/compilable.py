"""Compilable: which graphs a compiler of loops is right for."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from foregrad.backends.eager import ASKS_GRAD_MODE
from foregrad.backends.numbers_as_tensors import can_be_in_tensors, takes_numbers
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import Redraw, rng_state
from foregrad.program.dead_code import has_effect, is_view, op_of
from foregrad.record.impure import effect_of
from foregrad.regions.fallbacks import KERNEL, REFUSED, Fallback, Why, together
from foregrad.torch_private.fx_graph import lazy_graph_module

aten = torch.ops.aten
#: Ops for which no loop can stand.
_BY_THEMSELVES = {
    aten.as_strided.default: Why(REFUSED, "reads by places in memory, which a compiler chooses anew"),
    aten.as_strided_scatter.default: Why(REFUSED, "writes by places in memory, which a compiler chooses anew"),
    aten.mkldnn_rnn_layer_backward.default: Why(KERNEL, "takes a tensor whose size only its kernel knows"),
    getattr(aten.random, "from"): Why(KERNEL, "has a keyword of Python's as its name"),
}
#: Ops that put values at places of a copy of a tensor, by the place of these among their arguments.
_PUTS = {
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default, aten.index_put_.default), 2),
    **dict.fromkeys((aten.index_add.default, aten.index_copy.default, aten.index_reduce.default), 3),
    **dict.fromkeys((aten.masked_scatter.default, aten.put.default), 2),
}
_SCATTERS = {aten.scatter.src, aten.scatter.reduce, aten.scatter_add.default, aten.scatter_reduce.two}
#: Ops that look at their first argument for its size or dtype alone.
_LOOK_ONLY = {
    *(aten.new_zeros.default, aten.new_ones.default, aten.new_full.default, aten.new_empty.default),
    *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default, aten.empty_like.default),
}
_BY_PLACES = Why(KERNEL, "scatters, which Inductor gets wrong in some gradients of sorted values (torch 2.13)")
_BY_ITS_TARGET = Why(KERNEL, "puts values into the tensor that they are computed from, which Inductor may do in place")
_BY_GRAD_MODE = Why(KERNEL, "computes by the grad mode")
_BY_WRITES = Why(KERNEL, "has no form that does not write")
_BY_STATES = Why(KERNEL, "draws numbers again that were drawn before")
_BY_EFFECTS = Why(KERNEL, "has an effect, or moves a generator")
_BY_NUMBERS = Why(REFUSED, "takes a number of Python's that varies between calls")
_COMPLEX = Why(REFUSED, "complex numbers")
_FOURIER = Why(KERNEL, "a Fourier transform, by a library")


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
    return why_opaque(node) is not None


def why_opaque(node: fx.Node) -> Why | None:
    """Why no loop can stand for an op, if none can."""
    spec = node.meta.get("spec")
    if node.target in _BY_THEMSELVES:
        return _BY_THEMSELVES[node.target]
    if node.target in ASKS_GRAD_MODE:
        return _BY_GRAD_MODE
    if node.target in _SCATTERS:
        return _BY_PLACES
    if node.target in _PUTS and _computed_from(node.args[0]) & _computed_from(node.args[_PUTS[node.target]]):
        return _BY_ITS_TARGET
    if isinstance(node.target, Pure):
        return _BY_WRITES
    if isinstance(node.target, Redraw) or node.target is rng_state:
        return _BY_STATES
    if _must_run(node):
        return _BY_EFFECTS
    if takes_numbers(node) and not can_be_in_tensors(node):
        return _BY_NUMBERS
    if spec is not None and node.target is not operator.getitem and spec.dtype.is_complex:
        return _FOURIER if name_of(node).startswith("aten._fft_") else _COMPLEX
    return None


def _computed_from(value: Any) -> set[fx.Node]:
    """The ops by which a value is computed, itself among them; inputs of the graph, which stay as they are, are not."""
    found: set[fx.Node] = set()
    waiting = [value] if isinstance(value, fx.Node) else []
    while waiting:
        node = waiting.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            waiting += () if node.target in _LOOK_ONLY else node.all_input_nodes
    return found


def opaque_ops(graph: fx.GraphModule) -> tuple[Fallback, ...]:
    """The ops of a graph for which no loop can stand."""
    found = ((node, why_opaque(node)) for node in graph.graph.nodes if node.op == "call_function" and _works(node))
    return together(Fallback(1, name_of(node), why, line_of(node)) for node, why in found if why is not None)


def _works(node: fx.Node) -> bool:
    """Whether an op does more than to look at numbers; one that goes by places keeps compiled code from being one."""
    return node.target in _BY_THEMSELVES or not is_view(node)


def name_of(node: fx.Node) -> str:
    """The name of an op, for people."""
    func = op_of(node)
    if func is None:
        return str(getattr(node.target, "__name__", node.target))
    return str(func).removesuffix(".default")


def line_of(node: fx.Node) -> str:
    """The user's line that an op comes from, or an empty text."""
    origin = node.meta.get("origin")
    return "" if origin is None or origin.code is None else str(origin)
