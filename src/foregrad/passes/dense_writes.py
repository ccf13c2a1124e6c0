"""Dense writes: what was written into a part of a tensor, in memory of its own, without room for the rest.

    gates = split(sum, 256, 1)                                 f32[16, 256] stride (1024, 1)
    copy = copy(gates[0], sigmoid(gates[0]))                   f32[16, 256] stride (1024, 1)
->  copy = clone(sigmoid(gates[0]), contiguous)                f32[16, 256]

A write to a view is a value with the view's strides, as eager has it; but it is not in the view's memory, and its own
has gaps as large as the rest of the tensor. The gates of a recurrent cell, which eager computes in place, would take
four times the memory. Where each element is read by itself, nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import fx

from foregrad.core.spec import Spec, contiguous_stride
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten


def without_gaps(program: Program) -> Program:
    """The same program, with values that are written to views in dense memory."""
    if not any(_can_be_dense(node) for node in program.graph.graph.nodes):
        return program
    made = copied(program.graph)
    for node in made.graph.nodes:
        if _can_be_dense(node):
            node.target, node.args = aten.clone.default, (node.args[1],)
            node.kwargs = {"memory_format": torch.contiguous_format}
            for one in _seen_as(node):
                one.meta["spec"] = replace(one.meta["spec"], stride=contiguous_stride(one.meta["spec"].shape))
    return program.with_graph(made)


def _can_be_dense(node: fx.Node) -> bool:
    """Whether a node is a value with gaps in its rows, of which only elements are read."""
    if node.target is not aten.copy.default or len(node.args) != 2 or not isinstance(node.args[1], fx.Node):
        return False
    spec, value = node.meta["spec"], node.args[1].meta.get("spec")
    if type(spec) is not Spec or type(value) is not Spec or not all(type(n) is int for n in spec.shape + spec.stride):
        return False
    is_same = (value.shape, value.dtype, value.device) == (spec.shape, spec.dtype, spec.device)
    is_in_order = list(spec.stride) == sorted(spec.stride, reverse=True) and 0 not in spec.stride
    readers = [user for seen in _seen_as(node) for user in seen.users if user.target is not aten.detach.default]
    return is_same and is_in_order and not spec.is_dense and all(map(_reads_elements, readers))


def _seen_as(node: fx.Node) -> Iterator[fx.Node]:
    """A value, and other names of it."""
    yield node
    for user in node.users:
        if user.target is aten.detach.default:
            yield from _seen_as(user)


def _reads_elements(node: fx.Node) -> bool:
    """Whether an op works on each element by itself."""
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags
