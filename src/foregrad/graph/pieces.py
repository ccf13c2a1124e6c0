"""Pieces: which memory is copied to keep a tensor, so that tensors that share memory share the copy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from foregrad.core.spec import Spec, contiguous_stride
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.autograd_graph import WeakStorage, storage_id
from foregrad.torch_private.tensors import view_base
from foregrad.torch_private.transforms import is_functorch_wrapped_tensor

Geometry = tuple[
    tuple[int, ...], tuple[int, ...], int
]  # size, stride and offset of a tensor in the elements of a piece

#: A view is kept together with the tensor that it is a view of, if that is at most so many times larger.
_WORTH_SHARING = 4
_SMALL = 1 << 16


@dataclass(frozen=True, slots=True)
class Piece:
    """Some elements of a storage, and where in them a tensor is."""

    key: Any  # equal for tensors whose elements are in the same piece, at the same version
    lean: torch.Tensor
    source: WeakStorage
    geometry: Geometry

    def elements(self) -> torch.Tensor:
        """The elements in a row; a view of the storage if they lie so."""
        if is_dense(self.lean):
            return self.lean.as_strided((self.lean.numel(),), (1,), self.lean.storage_offset())
        return self.lean.contiguous().flatten()


def piece_of(tensor: torch.Tensor, is_kept: Callable[[Any], bool]) -> Piece:
    """The memory to copy for a tensor: the whole of which it is a view, or its own elements, each once.

    The whole counts if it `is_kept` already, or is not much larger: views of it are seldom saved alone.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.detach().resolve_conj().resolve_neg()
    whole = view_base(tensor)
    if whole is not None and whole.dtype == tensor.dtype and is_dense(whole):
        piece = _dense_piece(tensor, whole)
        if whole.numel() <= _WORTH_SHARING * tensor.numel() or is_kept(piece.key):
            return piece
    return _dense_piece(tensor, tensor) if is_dense(tensor) else _gathered_piece(tensor)


def _dense_piece(tensor: torch.Tensor, whole: torch.Tensor) -> Piece:
    start = int(whole.storage_offset())
    geometry = tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()) - start
    return Piece((*_version(tensor), start, whole.numel()), whole.detach(), WeakStorage(tensor), geometry)


def _gathered_piece(tensor: torch.Tensor) -> Piece:
    """Of elements with others between them; those that an expanded dimension repeats are taken once."""
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    lean = tensor.detach()[once]
    new = lean.stride() if is_dense(lean) else contiguous_stride(tuple(lean.shape))
    stride = tuple(0 if old == 0 else step for old, step in zip(tensor.stride(), new, strict=True))
    key = (*_version(tensor), int(tensor.storage_offset()), tuple(lean.shape), lean.stride())
    return Piece(key, lean, WeakStorage(tensor), (tuple(tensor.shape), stride, 0))


def _version(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tells the contents of storages apart.

    A batch norm in training writes its running statistics without a new version, so that small tensors without a
    gradient are copied each time.
    """
    may_be_statistics = not tensor.requires_grad and tensor.nbytes <= _SMALL
    return storage_id(tensor), tensor.dtype, version_of(tensor), object() if may_be_statistics else None


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements fill their memory, each in a place of its own."""
    return tensor.is_contiguous() or Spec.of(tensor).is_dense


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but elements in memory."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.numel() > 0
        and not tensor.is_meta
        and not tensor.is_quantized
        and not is_functorch_wrapped_tensor(tensor)
    )


def of_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one: these are alive anyway."""
    base = view_base(tensor)
    return isinstance(tensor if base is None else base, nn.Parameter)
