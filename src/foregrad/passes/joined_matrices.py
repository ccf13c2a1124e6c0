"""Join: matrices one after another, as one matrix, and the nodes that passes put into a program for it."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import Spec, contiguous_stride, symbols_in

aten = torch.ops.aten


def joined(like: fx.Node, values: list[fx.Node], dim: int) -> fx.Node:
    """Matrices joined along a dimension: a copy, unless they are all parts of one tensor, in order."""
    shape = list(values[0].meta["spec"].shape)
    shape[dim] = sum(value.meta["spec"].shape[dim] for value in values)
    spec = replace(values[0].meta["spec"], shape=tuple(shape), stride=(shape[1], 1))
    whole = _whole(values) if dim == 0 else None
    if whole is not None:
        return node_like(like, aten.view.default, (whole, shape), spec)
    return node_like(like, aten.cat.default, (values, dim), spec)


def _whole(values: list[fx.Node]) -> fx.Node | None:
    """The tensor of which values are the parts that `unbind` gives, if its rows lie one after another."""
    parts: Any = values[0].args[0] if values[0].target is operator.getitem else None
    if not isinstance(parts, fx.Node) or parts.target is not aten.unbind.int or parts.args[1:] not in ((), (0,)):
        return None
    whole: Any = parts.args[0]
    spec = whole.meta["spec"]
    if (
        type(spec) is not Spec
        or symbols_in(spec)
        or spec.shape[0] != len(values)
        or spec.stride != contiguous_stride(spec.shape)
    ):
        return None
    is_in_order = all(v.target is operator.getitem and v.args == (parts, place) for place, v in enumerate(values))
    return whole if is_in_order else None


def node_like(like: fx.Node, op: Any, args: tuple[Any, ...], spec: Spec | None) -> fx.Node:
    """A node of the phase and line of another one, at the place where its graph inserts."""
    made = like.graph.call_function(op, args)
    made.meta = {**like.meta, "spec": spec, "key": (like.meta.get("key", like.name), made.name)}
    return made
