"""Whether two aliases of one storage have elements in common, and what that means for a write."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch

from foregrad.core.size import sizes_in, value_of
from foregrad.functionalize.pure_variants import has_in_place, is_pointwise, writes_out
from foregrad.record.ghosts.table import GhostTable
from foregrad.record.ops import Alias, Op, aliases_in
from foregrad.torch_private.ops import OpOverload, schema_of

aten = torch.ops.aten

_FEW = 1 << 20

#: Ops that write the same to every element: how often they visit one makes no difference.
_FILLS = {aten.fill_.Scalar, aten.zero_.default}


def share_elements(a: Alias, b: Alias) -> bool:
    """Whether some element belongs to both; large tensors count as sharing when their ranges do."""
    (a_start, a_end), (b_start, b_end) = _byte_range(a), _byte_range(b)
    if a_end <= b_start or b_end <= a_start:
        return False
    if a.dtype != b.dtype or sizes_in((a.geometry, b.geometry)) or a.spec.extent > _FEW or b.spec.extent > _FEW:
        return True
    return bool(torch.isin(_places(a), _places(b)).any())


def covered(alias: Alias, by: list[Alias]) -> bool:
    """Whether every element of an alias belongs to one of the others; large tensors count as covered by their range."""
    if any(alias.geometry == other.geometry for other in by):
        return True
    if any(other.dtype != alias.dtype for other in by):
        start, end = _byte_range(alias)
        ranges = [_byte_range(other) for other in by if other.spec.is_dense]
        return any(other_start <= start and end <= other_end for other_start, other_end in ranges)
    if sizes_in([alias.geometry, *(other.geometry for other in by)]):
        return False  # nobody knows
    if alias.spec.extent > _FEW or any(other.spec.extent > _FEW for other in by):
        return True
    inside = torch.cat([_places(other) for other in by]) if by else torch.empty(0, dtype=torch.int64, device="cpu")
    return bool(torch.isin(_places(alias), inside).all())


def surely_covered(alias: Alias, by: Alias) -> bool:
    """Whether every element of an alias belongs to another one; of large tensors, as far as their geometry says it."""
    if (alias.dtype, alias.offset, _axes(alias)) == (by.dtype, by.offset, _axes(by)):
        return True
    if sizes_in([alias.geometry, by.geometry]):
        return False
    if by.spec.is_dense:
        (start, end), (other_start, other_end) = _byte_range(alias), _byte_range(by)
        return other_start <= start and end <= other_end
    are_small = max(alias.spec.extent, by.spec.extent) <= _FEW
    return are_small and alias.dtype == by.dtype and covered(alias, [by])


def _axes(alias: Alias) -> Counter[tuple[Any, Any]]:
    """Sizes and strides, in any order."""
    return Counter((size, stride) for size, stride in zip(alias.size, alias.stride, strict=True) if size != 1)


def overlaps_itself(alias: Alias) -> bool:
    """Whether two indices of an alias may be one element: each stride must reach past what the smaller ones span."""
    reach = 0
    for stride, size in sorted(
        ((stride, size) for size, stride in zip(alias.size, alias.stride, strict=True) if size > 1),
        key=lambda pair: (value_of(pair[0]), value_of(pair[1])),
    ):
        if stride <= reach:
            return 0 not in alias.size
        reach += (size - 1) * stride
    return False


def once(alias: Alias, table: GhostTable) -> Alias:
    """An expanded alias with each of its elements once: its first index where the stride is 0."""
    if 0 not in alias.stride:
        return alias
    size = tuple(min(n, 1) if stride == 0 else n for n, stride in zip(alias.size, alias.stride, strict=True))
    look = table.number_of((size, alias.stride, alias.dtype, alias.bits, alias.storage.device))
    return replace(alias, size=size, parent=None, op=None, meta=look)


def filled_once(op: Op, table: GhostTable) -> Op:
    """The same op, where it fills a tensor some of whose elements are one place in memory, on each of them once."""
    if op.func not in _FILLS or not overlaps_itself(op.writes[0]):
        return op
    part = once(op.writes[0], table)
    return replace(op, args=(part, *op.args[1:]), writes=(part,))


def _byte_range(alias: Alias) -> tuple[int, int]:
    return alias.offset * alias.dtype.itemsize, (alias.offset + alias.spec.extent) * alias.dtype.itemsize


def _places(alias: Alias) -> torch.Tensor:
    """The offset of every element."""
    places = torch.tensor([alias.offset], device="cpu")
    for size, stride in zip(alias.size, alias.stride, strict=True):
        places = (places[:, None] + torch.arange(size, device="cpu") * stride).reshape(-1)
    return places.unique()


#: Ops that are not marked as pointwise, and look at each element once.
_ELEMENT_BY_ELEMENT = {torch.ops.aten.copy_.default, torch.ops.aten.fill_.Tensor}


def _takes_lists(func: OpOverload) -> bool:
    """Whether an op is one of those for many tensors, each with its own beside it."""
    return schema_of(func).name.split("::")[-1].startswith(("_foreach_", "_fused_s", "_fused_a"))


def _is_in_place(op: Op, target: Alias) -> bool:
    """Whether an op writes its result, as `out=`, over its first argument, as its form in place does."""
    first = aliases_in(op.args[:1])
    is_over_it = [a.storage for a in first] == [target.storage] and first[0].geometry == target.geometry
    return is_over_it and writes_out(op.func) and has_in_place(op.func)


def _refuses_itself(func: OpOverload) -> bool:
    """Whether eager refuses that an op writes to a tensor and takes it too, even if it has no elements."""
    return schema_of(func).name.split("::")[-1].startswith(("index_", "_index_put", "scatter_", "put_"))


def depends_on_order(op: Op) -> str | None:
    """What makes the outcome of a write depend on the order in which elements are visited, if anything does."""
    arguments = aliases_in(op.args) + aliases_in(list(op.kwargs.values()))
    reads = aliases_in(op.args)[1:] if has_in_place(op.func) else aliases_in(op.args)
    for target in op.writes:
        if overlaps_itself(target):
            return "an op writes to a tensor some of whose elements are one place in memory"
        beside = [a for a in reads if a.storage is target.storage]
        if writes_out(op.func) and not is_pointwise(op.func) and any(share_elements(a, target) for a in beside):
            return "an op writes its result over its own argument"
        if sum(1 for a in op.writes if a.storage is target.storage and share_elements(a, target)) > 1:
            return "an op writes to one tensor as two of its arguments"
        if not is_pointwise(op.func) and op.func not in _ELEMENT_BY_ELEMENT and not _takes_lists(op.func):
            beside = [a for a in arguments if a.storage is target.storage]
            same = [a for a in beside if share_elements(a, target) or (a is target and _refuses_itself(op.func))]
            if len(same) > (2 if _is_in_place(op, target) else 1):
                return "an op writes to an argument that is another argument of it too"
        others = [a for a in arguments if a.storage is target.storage and a.geometry != target.geometry]
        if any(share_elements(target, other) for other in others):
            return "an op reads and writes overlapping memory, in an order that eager leaves open"
    return None
