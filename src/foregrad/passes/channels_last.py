"""Channels last: images laid out, from convolution to convolution, as the kernels of convolutions want them.

    conv = convolution(x, w)              x_last = clone(x, memory_format=channels_last); w_last = ...
    relu = relu(conv)           ->        conv = convolution(x_last, w_last)      # channels last too
    mm = mm(view(relu), v)                relu = relu(conv)
                                          relu_first = clone(relu); mm = mm(view(relu_first), v)

It is a pass over the whole program, so that forward and backward agree on the layout of what is saved. What the caller
sees keeps the layout that eager gives it.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from foregrad.core.size import frozen_all
from foregrad.core.spec import NumberSpec, SizeSpec, Spec
from foregrad.passes.convolution_sizes import gains_by_channels_last
from foregrad.program.program import Program
from foregrad.program.reuse_saved import in_layout
from foregrad.torch_private.fake_tensors import FakeTensorMode
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.inductor import mode_for
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten

#: Convolutions, and which of their arguments are images or weights.
_CONVOLUTIONS = {aten.convolution.default: (0, 1), aten.convolution_backward.default: (0, 1, 2)}

#: What takes images in any layout, and gives them in the same one; so does whatever works on each element by itself.
_TAKES_BOTH = {
    aten._native_batch_norm_legit_functional.default,
    aten._native_batch_norm_legit.no_stats,
    aten.native_batch_norm.default,
    aten.native_batch_norm_backward.default,
    aten.max_pool2d_with_indices.default,
    aten.max_pool2d_with_indices_backward.default,
    aten.avg_pool2d.default,
    aten.avg_pool2d_backward.default,
    aten.mean.dim,
    aten.sum.dim_IntList,
}


def channels_last(program: Program) -> Program:
    """The same program, with its images channels last wherever only it can see them."""
    nodes = program.graph.graph.nodes
    if not any(n.target in _CONVOLUTIONS and _is_image(n.args[0].meta["spec"]) for n in nodes):
        return program
    constants = {str(n.target): getattr(program.graph, str(n.target)) for n in nodes if n.op == "get_attr"}
    layouts = _Layouts(mode_for(node.meta.get("spec") for node in nodes))
    return program.with_graph(lazy_graph_module(constants, layouts.rewritten(program.graph.graph), "Graph"))


def _is_image(spec: Any) -> bool:
    if not isinstance(spec, Spec):
        return False
    return len(spec.shape) == 4 and spec.is_contiguous and spec.dtype.is_floating_point and spec.device.type == "cpu"


class _Layouts:
    """Copies a graph; some of the copies have another layout than what they are copies of."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.graph = fx.Graph()
        self.copies: dict[fx.Node, fx.Node] = {}
        self.first: dict[fx.Node, fx.Node] = {}  # values in the layout that was recorded, where the copy has another
        self.last: dict[tuple[fx.Node, int], fx.Node] = {}  # channels last, by phase
        self.mode = mode

    def rewritten(self, graph: fx.Graph) -> fx.Graph:
        for node in graph.nodes:
            if node.op == "output":
                self.graph.output(tuple(self._as_recorded(r) for r in node.args[0]))
            else:
                self.copies[node] = self._copy(node)
        return self.graph

    def _copy(self, node: fx.Node) -> fx.Node:
        if node.target is operator.getitem:
            made = self.graph.node_copy(node, self.copies.__getitem__)
            results = made.args[0].meta.get("results")  # type: ignore[union-attr]
            if results is not None:
                made.meta["spec"] = results[node.args[1]]
            return made
        if node.op != "call_function" or not node.all_input_nodes:
            return self.graph.node_copy(node, self.copies.__getitem__)
        images: list[Any]
        if self._gains(node):
            images = [node.args[i] for i in _CONVOLUTIONS[node.target]]  # type: ignore[index]
        else:
            images = [read for read in node.all_input_nodes if _is_image(read.meta.get("spec"))]
            is_given = any(read.op == "placeholder" for read in images)  # as the state of an optimizer is
            if is_given or not _takes_both(node) or not any(map(self._has_moved, images)):
                return self.graph.node_copy(node, self._as_recorded)
        made = self.graph.node_copy(node, lambda read: self._moved(read, node) if read in images else self.copies[read])
        self._propagate(made)
        return made

    def _gains(self, node: fx.Node) -> bool:
        """Whether a node is a convolution that is worth it; its forward and its backward are, or neither."""
        if node.target not in _CONVOLUTIONS or not _is_image(node.args[0].meta["spec"]):  # type: ignore[union-attr]
            return False
        args: Any = node.args
        is_forward = node.target is aten.convolution.default
        image, weight, *options = (*args[:2], *args[3:]) if is_forward else (*args[1:3], *args[4:-1])
        count, _, height, width = (node if is_forward else args[0]).meta["spec"].plain().shape
        looks = [_like(one.meta["spec"].plain(), self.mode) for one in (image, weight)]
        return gains_by_channels_last(count * height * width, *looks, *options)

    def _has_moved(self, node: fx.Node) -> bool:
        return bool(self.copies[node].meta.get("spec") != node.meta.get("spec"))

    def _as_recorded(self, node: Any) -> Any:
        """The copy of a value in the layout that the value had."""
        if not isinstance(node, fx.Node) or not self._has_moved(node):
            return self.copies[node] if isinstance(node, fx.Node) else node
        if node not in self.first:
            self.first[node] = self._clone(node, self.copies[node], torch.contiguous_format, node.meta["spec"])
        return self.first[node]

    def _moved(self, node: fx.Node, reader: fx.Node) -> fx.Node:
        """The copy of a value with its channels last. What a caller gives is not kept in a second layout for later."""
        if self._has_moved(node) or not _is_image(node.meta["spec"]):
            return self.copies[node]
        phase = reader.meta["phase"] if node.op == "placeholder" else -1
        if (node, phase) not in self.last:
            spec = node.meta["spec"]
            with self.mode:
                strides = frozen_all(torch.empty(spec.thawed()[0], memory_format=torch.channels_last).stride())
            like = node if node.op == "call_function" else reader
            self.last[node, phase] = self._clone(
                like, self.copies[node], torch.channels_last, replace(spec, stride=strides), of=node
            )
        return self.last[node, phase]

    def _clone(
        self, like: fx.Node, value: fx.Node, layout: torch.memory_format, spec: Spec, of: fx.Node | None = None
    ) -> fx.Node:
        made = self.graph.call_function(aten.clone.default, (value,), {"memory_format": layout})
        made.meta = {k: v for k, v in like.meta.items() if k != "results"}
        made.meta |= {"spec": spec, "key": in_layout((of or like).meta.get("key", (of or like).name), layout)}
        return made

    def _propagate(self, node: fx.Node) -> None:
        """What a node gives now, by its shape function."""

        def fake(value: fx.Node) -> Any:
            spec = value.meta["spec"]
            if isinstance(spec, SizeSpec) and spec.size is not None:
                return spec.size.symbol()
            if isinstance(spec, NumberSpec):
                return 1.0 if spec.dtype.is_floating_point else 1
            return _like(spec, self.mode)

        target: Any = node.target
        with self.mode, torch.no_grad():
            args, kwargs = fx.map_arg((node.args, node.kwargs), fake)
            result = target(*args, **kwargs)
        if isinstance(result, torch.Tensor):
            node.meta["spec"] = replace(node.meta["spec"], stride=frozen_all(result.stride()))
        else:
            node.meta["results"] = [None if r is None else Spec.of(r).frozen() for r in result]


def _like(spec: Spec, mode: FakeTensorMode) -> torch.Tensor:
    with mode:
        return torch.empty_strided(*spec.thawed(), dtype=spec.dtype, device=spec.device)


def _takes_both(node: fx.Node) -> bool:
    func = node.target
    return isinstance(func, OpOverload) and (func in _TAKES_BOTH or torch.Tag.pointwise in func.tags)
