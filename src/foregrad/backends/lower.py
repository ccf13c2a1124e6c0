"""Lower: a graph in the ops that a compiler wants, on fake tensors.

gelu = aten.gelu(x)        becomes        mul = aten.mul(x, 0.5); erf = aten.erf(...); ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.backends.double_precision_sums import IN_DOUBLE
from foregrad.backends.numbers_as_tensors import in_tensors, takes_numbers
from foregrad.core.spec import Spec
from foregrad.torch_private.fake_tensors import FakeTensorMode
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.inductor import fake_mode, trace_decomposed
from foregrad.torch_private.ops import OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Lowered:
    """A decomposed graph, fake tensors that look like its inputs, real ones that it takes after these, and the
    mode of the fake ones."""

    graph: fx.GraphModule
    inputs: list[torch.Tensor]
    constants: tuple[torch.Tensor, ...]
    mode: FakeTensorMode


def lower(module: fx.GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> Lowered:
    """Decompose every op of a graph by a table."""
    module, constants = _constants_last(module)
    mode = fake_mode()
    with mode:
        inputs = [_empty(n.meta["spec"]) for n in module.graph.nodes if n.op == "placeholder"]
        run = fx.Interpreter(module).run  # to call the module would run the user's hooks of all modules
        graph = trace_decomposed(run, inputs, decompositions)
    _keep_layouts(module.graph, graph.graph, mode)
    _check_pure(graph.graph)
    return Lowered(graph, inputs, constants, mode)


def _check_pure(graph: fx.Graph) -> None:
    """A compiler may move a write before a read: leave a graph in which a decomposition writes to someone else. The new
    contents of an input are another matter, which compilers know."""
    for node in graph.nodes:
        if isinstance(node.target, OpOverload) and schema_of(node.target).is_mutable and not _writes_input(node):
            raise NotImplementedError(f"{node.target} writes to its argument")


def _writes_input(node: fx.Node) -> bool:
    target = node.args[0] if node.args else None
    return node.target is torch.ops.aten.copy_.default and isinstance(target, fx.Node) and target.op == "placeholder"


def _empty(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)


def _constants_last(module: fx.GraphModule) -> tuple[fx.GraphModule, tuple[torch.Tensor, ...]]:
    """The same graph with its constants as inputs, after all others, and its numbers as tensors."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    constants: list[torch.Tensor] = []
    for node in sorted(module.graph.nodes, key=_rank):
        if node.op == "get_attr":
            copies[node] = graph.placeholder(node.name)
            constants.append(getattr(module, str(node.target)))
            copies[node].meta = {"spec": Spec.of(constants[-1])}
        else:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            if node.target is torch.ops.aten._local_scalar_dense.default:
                copies[node].target = torch.ops.aten.clone.default  # a number of data stays a tensor
            elif takes_numbers(node):
                copies[node].target = in_tensors(node)
            elif node.target in IN_DOUBLE:
                copies[node].target = IN_DOUBLE[node.target]
    return lazy_graph_module({}, graph, "Graph"), tuple(constants)


def _rank(node: fx.Node) -> int:
    return {"placeholder": 0, "get_attr": 1}.get(node.op, 2)


def _keep_layouts(recorded: fx.Graph, lowered: fx.Graph, mode: FakeTensorMode) -> None:
    """Where a decomposition gives a result another layout than its op does, copy it to that of the op."""
    output = lowered.output_node()
    wanted: Any = recorded.output_node().args[0]
    made: Any = output.args[0]
    results = list(made)
    for place, (before, after) in enumerate(zip(wanted, made, strict=True)):
        if isinstance(before, fx.Node) and isinstance(after, fx.Node):
            spec: Spec = before.meta["spec"]
            if tuple(after.meta["val"].stride()) != spec.stride:
                with lowered.inserting_before(output):
                    results[place] = _copied(lowered, after, spec, mode)
    output.args = (tuple(results),)


def _copied(graph: fx.Graph, value: fx.Node, spec: Spec, mode: FakeTensorMode) -> fx.Node:
    room = graph.call_function(aten.new_empty_strided.default, (value, list(spec.shape), list(spec.stride)))
    copy = graph.call_function(aten.copy.default, (room, value))
    with mode:
        room.meta["val"], copy.meta["val"] = _empty(spec), _empty(spec)
    return copy
