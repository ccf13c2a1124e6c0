"""Whether two aliases of one storage have elements in common."""

from __future__ import annotations

import torch

from foregrad.record.trace import Alias

_FEW = 1 << 20


def share_elements(a: Alias, b: Alias) -> bool:
    """Whether some element belongs to both; large tensors count as sharing when their ranges do."""
    a_start, a_end = a.offset * a.dtype.itemsize, (a.offset + a.spec.extent) * a.dtype.itemsize
    b_start, b_end = b.offset * b.dtype.itemsize, (b.offset + b.spec.extent) * b.dtype.itemsize
    if a_end <= b_start or b_end <= a_start:
        return False
    if a.dtype != b.dtype or a.spec.extent > _FEW or b.spec.extent > _FEW:
        return True
    return bool(torch.isin(_places(a), _places(b)).any())


def covered(alias: Alias, by: list[Alias]) -> bool:
    """Whether every element of an alias belongs to one of the others; large tensors count as covered by their range."""
    if any(alias.geometry == other.geometry for other in by):
        return True
    if alias.spec.extent > _FEW or any(other.dtype != alias.dtype or other.spec.extent > _FEW for other in by):
        return True
    inside = torch.cat([_places(other) for other in by]) if by else torch.empty(0, dtype=torch.int64, device="cpu")
    return bool(torch.isin(_places(alias), inside).all())


def overlaps_itself(alias: Alias) -> bool:
    """Whether two indices of an alias may be one element: each stride must reach past what the smaller ones span."""
    reach = 0
    for stride, size in sorted(
        (stride, size) for size, stride in zip(alias.size, alias.stride, strict=True) if size > 1
    ):
        if stride <= reach:
            return 0 not in alias.size
        reach += (size - 1) * stride
    return False


def _places(alias: Alias) -> torch.Tensor:
    """The offset of every element."""
    places = torch.tensor([alias.offset], device="cpu")
    for size, stride in zip(alias.size, alias.stride, strict=True):
        places = (places[:, None] + torch.arange(size, device="cpu") * stride).reshape(-1)
    return places.unique()
