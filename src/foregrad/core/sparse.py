"""Sparse tensors and the dense ones of which they are made.

COO       indices, values
CSR, BSR  crow_indices, col_indices, values
CSC, BSC  ccol_indices, row_indices, values
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.torch_private.sparse import FROM_COMPRESSED_PARTS, FROM_PARTS, SPARSE_PATHS


def is_sparse(value: object) -> bool:
    """Whether a value is a tensor of one of torch's sparse layouts."""
    return isinstance(value, torch.Tensor) and value.layout in SPARSE_PATHS


@dataclass(frozen=True)
class SparseForm:
    """What a sparse tensor looks like apart from its parts."""

    layout: torch.layout
    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    sparse_dim: int
    dense_dim: int
    is_coalesced: bool | None  # None for layouts that know no such thing

    @staticmethod
    def of(tensor: torch.Tensor) -> SparseForm:
        is_coo = tensor.layout is torch.sparse_coo
        return SparseForm(
            layout=tensor.layout,
            size=tuple(tensor.size()),
            dtype=tensor.dtype,
            device=tensor.device,
            sparse_dim=tensor.sparse_dim(),
            dense_dim=tensor.dense_dim(),
            is_coalesced=tensor.is_coalesced() if is_coo else None,
        )

    def call(self, parts: Sequence[Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """The op that makes such a tensor of its parts, with its arguments."""
        options = {"dtype": self.dtype, "layout": self.layout, "device": self.device}
        if self.layout is torch.sparse_coo:
            args = (self.sparse_dim, self.dense_dim, list(self.size), *parts)
            return FROM_PARTS, args, {**options, "is_coalesced": self.is_coalesced}
        return FROM_COMPRESSED_PARTS, (*parts, list(self.size)), options

    def make(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Such a tensor around these parts."""
        func, args, kwargs = self.call(parts)
        made: torch.Tensor = func(*args, **kwargs)
        return made

    def __str__(self) -> str:
        return str(self.layout).removeprefix("torch.") + (", coalesced" if self.is_coalesced else "")


def example_indices(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Valid indices for the number of entries that are given to an op which makes a sparse tensor of its parts: kernels
    read behind memory if indices are not."""
    if func is FROM_PARTS:
        sparse_dim, size, (_, num_entries) = args[0], args[2], args[3].shape
        places = torch.arange(num_entries) % max(math.prod(size[:sparse_dim]), 1)
        rows = torch.unravel_index(places, tuple(max(n, 1) for n in size[:sparse_dim])) if sparse_dim else ()
        return [torch.stack([*rows]) if rows else torch.zeros_like(args[3])]
    compressed, plain, values, size = args[:4]
    num_batches = compressed.dim() - 1
    blocks = tuple(values.shape[num_batches + 1 : num_batches + 3]) if "bs" in str(kwargs["layout"]) else (1, 1)
    lines, across = (n // block for n, block in zip(size[num_batches : num_batches + 2], blocks, strict=True))
    if kwargs["layout"] in (torch.sparse_csc, torch.sparse_bsc):
        across = lines
    num_entries = plain.shape[-1]
    starts = (torch.arange(compressed.shape[-1]) * across).clamp(max=num_entries).to(compressed.dtype)
    places = (torch.arange(num_entries) % max(across, 1)).to(plain.dtype)
    return [starts.expand(compressed.shape).contiguous(), places.expand(plain.shape).contiguous()]
