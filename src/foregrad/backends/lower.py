"""Lower: a graph in the ops that a compiler wants, on fake tensors.

gelu = aten.gelu(x)        becomes        mul = aten.mul(x, 0.5); erf = aten.erf(...); ...
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.backends.double_precision_sums import IN_DOUBLE
from foregrad.backends.numbers_as_tensors import in_tensors, takes_numbers
from foregrad.core.size import frozen_all
from foregrad.core.spec import NumberSpec, SizeSpec, Spec, symbols_in
from foregrad.torch_private.dispatch import symbolic_kernels
from foregrad.torch_private.fake_tensors import FakeTensorMode
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.inductor import mode_for, trace_decomposed
from foregrad.torch_private.ops import OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Lowered:
    """A decomposed graph, fake tensors that look like its inputs, real ones that it takes after these, and the
    mode of the fake ones."""

    graph: fx.GraphModule
    inputs: list[Any]  # and symbols that look like its sizes
    constants: tuple[torch.Tensor, ...]
    mode: FakeTensorMode


def lower(module: fx.GraphModule, decompositions: dict[Any, Callable[..., Any]]) -> Lowered:
    """Decompose every op of a graph by a table."""
    module, constants = _constants_last(module)
    mode = mode_for(n.meta.get("spec") for n in module.graph.nodes)
    varies = any(symbols_in(n.meta.get("spec")) for n in module.graph.nodes)
    with mode, symbolic_kernels() if varies else nullcontext():
        inputs = [_like(n.meta["spec"]) for n in module.graph.nodes if n.op == "placeholder"]
        graph = trace_decomposed(_with_layouts(module), inputs, decompositions)
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


def _like(spec: Spec) -> Any:
    """What an input looks like: a fake tensor, or a symbol for a size."""
    if isinstance(spec, SizeSpec) and spec.size is not None:
        return spec.size.symbol()
    return torch.empty_strided(*spec.thawed(), dtype=spec.dtype, device=spec.device)


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
            if _takes_default_dtype(node):
                copies[node].kwargs = {**copies[node].kwargs, "dtype": node.meta["spec"].dtype}
            if node.target is torch.ops.aten._local_scalar_dense.default:
                copies[node].target = torch.ops.aten.clone.default  # a number of data stays a tensor
            elif takes_numbers(node):
                copies[node].target = in_tensors(node)
            elif node.target in IN_DOUBLE:
                copies[node].target = IN_DOUBLE[node.target]
    return lazy_graph_module({}, graph, "Graph"), tuple(constants)


def _takes_default_dtype(node: fx.Node) -> bool:
    """Whether an op makes a tensor of nothing, of a dtype that nobody has named: Inductor has others than torch
    (`scalar_tensor`, torch 2.13), and the default may be another one when it compiles."""
    if not isinstance(node.target, OpOverload) or not isinstance(node.meta.get("spec"), Spec):
        return False
    named = {argument.name for argument in schema_of(node.target).arguments if argument.kwarg_only}
    has_tensors = any(not isinstance(one.meta.get("spec"), NumberSpec) for one in node.all_input_nodes)
    return "dtype" in named and not has_tensors and node.kwargs.get("dtype") is None


def _rank(node: fx.Node) -> int:
    return {"placeholder": 0, "get_attr": 1}.get(node.op, 2)


def _with_layouts(module: fx.GraphModule) -> Callable[..., tuple[Any, ...]]:
    """A graph as a function that copies a result to the layout of its op, where a decomposition gives it another."""
    interpreter = fx.Interpreter(module)  # to call the module would run the user's hooks of all modules
    wanted: Any = module.graph.output_node().args[0]

    def run(*inputs: Any) -> tuple[Any, ...]:
        made: Any = interpreter.run(*inputs)
        return tuple(_laid_out(one, node) for one, node in zip(made, wanted, strict=True))

    return run


def _laid_out(value: Any, node: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    spec: Spec = node.meta["spec"]
    if frozen_all(value.stride()) == spec.stride:
        return value
    return aten.copy.default(aten.new_empty_strided.default(value, *map(list, spec.thawed())), value)
