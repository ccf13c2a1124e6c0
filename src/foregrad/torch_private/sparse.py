"""Sparse tensors: which dense tensors they are made of, and the ops that make them of these."""

from __future__ import annotations

import torch

__all__ = ["FROM_COMPRESSED_PARTS", "FROM_PARTS", "SPARSE_PATHS", "sparse_parts"]

FROM_PARTS = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
FROM_COMPRESSED_PARTS = torch.ops.aten._sparse_compressed_tensor_unsafe.default

_BY_ROWS, _BY_COLUMNS = (".crow_indices()", ".col_indices()"), (".ccol_indices()", ".row_indices()")
#: What reads each part of a sparse tensor, by its layout.
SPARSE_PATHS = {
    torch.sparse_coo: ("._indices()", "._values()"),
    torch.sparse_csr: (*_BY_ROWS, ".values().detach()"),
    torch.sparse_bsr: (*_BY_ROWS, ".values().detach()"),
    torch.sparse_csc: (*_BY_COLUMNS, ".values().detach()"),
    torch.sparse_bsc: (*_BY_COLUMNS, ".values().detach()"),
}


def sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The dense tensors of which a sparse one is made, views of nothing, in the order of their paths."""
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values().detach()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values().detach()
