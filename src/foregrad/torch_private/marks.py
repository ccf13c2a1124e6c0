"""Marks: what `torch._dynamo.mark_dynamic` and its like have written on a tensor, read without importing that."""

from __future__ import annotations

from dataclasses import dataclass

import torch

#: Attributes that are marks, and nothing that a function computes with.
MARKS = frozenset(
    (
        "_dynamo_dynamic_indices", "_dynamo_dynamic_range", "_dynamo_hint_overrides", "_dynamo_static_indices",
        "_dynamo_weak_dynamic_indices", "_dynamo_unbacked_indices", "_has_dynamo_dim_marking", "_specialize_on",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Marked:
    """The dimensions of a tensor that are marked to vary, with their bounds, and those that are not to."""

    varying: tuple[tuple[int, int | None, int | None], ...] = ()
    fixed: tuple[int, ...] = ()


NOTHING = Marked()


def marks_of(tensor: torch.Tensor) -> Marked:
    """What is marked on a tensor."""
    found = tensor.__dict__
    if not found:
        return NOTHING
    rank = tensor.dim()
    bounds = {one.dim % rank: (one.min, one.max) for one in found.get("_dynamo_dynamic_range", ()) if rank}
    indices = {*found.get("_dynamo_dynamic_indices", ()), *found.get("_dynamo_weak_dynamic_indices", ())}
    dims = sorted({index % rank for index in indices if rank})
    fixed = sorted({index % rank for index in found.get("_dynamo_static_indices", ()) if rank})
    return Marked(tuple((dim, *bounds.get(dim, (None, None))) for dim in dims), tuple(fixed))
