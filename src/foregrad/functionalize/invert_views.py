"""Invert views: from a new value of a view to the new value of what it is a view of.

v = base.select(0, 3);  v.mul_(2)
->
v1 = mul(select(base, 0, 3), 2);  base1 = select_scatter(base, v1, 0, 3)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.spec import contiguous_stride
from foregrad.record.ops import Alias
from foregrad.torch_private.ops import OpOverload, overload_name, schema_of

aten = torch.ops.aten

#: Emits one call and returns its node: emit(func, args, spec_like)
Emit = Callable[..., Any]
Inverse = Callable[[Emit, Any, Any, tuple[Any, ...], Alias, Alias], Any]


def _same(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
    return new


def _reshaped(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
    if any(one.stride != contiguous_stride(one.size) for one in (alias, parent_alias)):  # also where nothing is in them
        return None
    return emit(aten.view.default, (new, list(parent_alias.size)), parent_alias)


def _permuted(order: Callable[[Any, int], list[int]]) -> Inverse:
    def inverse(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
        forward = order(args, len(alias.size))
        back = sorted(range(len(forward)), key=lambda i: forward[i])
        return emit(aten.permute.default, (new, back), parent_alias)

    return inverse


def _transposed(args: Any, rank: int) -> list[int]:
    order = list(range(rank))
    if rank:
        a, b = args[1] % rank, args[2] % rank
        order[a], order[b] = order[b], order[a]
    return order


def _scattered(func: OpOverload) -> Inverse:
    def inverse(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
        return emit(func, (parent, new, *args[1:]), parent_alias)

    return inverse


def _unbound(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
    dim = args[1] if len(args) > 1 else 0
    return emit(aten.select_scatter.default, (parent, new, dim, alias.position), parent_alias)


def _split(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
    dim = args[2] % len(alias.size) if len(args) > 2 else 0
    if 0 in (parent_alias.stride[dim], *alias.size):
        return None
    start = (alias.offset - parent_alias.offset) // parent_alias.stride[dim]
    return emit(aten.slice_scatter.default, (parent, new, dim, start, start + alias.size[dim]), parent_alias)


def _bits(func: OpOverload) -> Inverse:
    def inverse(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
        return emit(func, (new,), parent_alias)

    return inverse


def _other_dtype(emit: Emit, parent: Any, new: Any, args: Any, parent_alias: Alias, alias: Alias) -> Any:
    return emit(aten.view.dtype, (new, parent_alias.dtype), parent_alias)


#: How to undo each view op; an op that is not here goes through `as_strided_scatter` on the whole storage.
INVERSES: dict[OpOverload, Inverse] = {
    aten.detach.default: _same,
    aten.alias.default: _same,
    aten.lift_fresh.default: _same,
    aten.view.default: _reshaped,
    aten._reshape_alias.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.t.default: _permuted(lambda args, rank: list(reversed(range(rank)))),
    aten.transpose.int: _permuted(_transposed),
    aten.permute.default: _permuted(lambda args, rank: [d % rank for d in args[1]]),
    aten.select.int: _scattered(aten.select_scatter.default),
    aten.slice.Tensor: _scattered(aten.slice_scatter.default),
    aten.diagonal.default: _scattered(aten.diagonal_scatter.default),
    aten.unbind.int: _unbound,
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.view.dtype: _other_dtype,
    aten.view_as_real.default: _bits(aten.view_as_complex.default),
    aten.view_as_complex.default: _bits(aten.view_as_real.default),
    aten._conj.default: _bits(aten._conj_physical.default),
    aten._neg_view.default: _bits(aten.neg.default),
}

#: Views that share nothing with each other.
PARTS = {aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int}


def out_of_place(func: OpOverload) -> OpOverload | None:
    """The view op that an in-place change of metadata applies: `t_` gives `t`."""
    name, overload = schema_of(func).name.removeprefix("aten::"), overload_name(func)
    if not name.endswith("_") or name in ("resize_", "set_", "resize_as_"):
        return None
    packet = getattr(aten, name[:-1], None)
    return getattr(packet, overload, None) if packet is not None else None
