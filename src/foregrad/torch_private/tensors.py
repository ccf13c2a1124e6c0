"""Tensors: their memory, the tensor that a view is a view of, wrapper subclasses."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._dynamo.guards import _empty_strided_cpu as empty_strided_cpu  # type: ignore[attr-defined]
from torch._C._dynamo.guards import _reinterpret_tensor as reinterpret_tensor  # type: ignore[attr-defined]
from torch._C._dynamo.guards import assert_size_stride as check_layout
from torch.utils._python_dispatch import is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type

__all__ = [
    "NO_MEMORY",
    "check_layout",
    "empty_strided_cpu",
    "give_memory",
    "is_traceable_wrapper_subclass",
    "is_traceable_wrapper_subclass_type",
    "is_zero_tensor",
    "neg_view",
    "reinterpret_tensor",
    "storage_key",
    "take_memory",
    "tensor_without_memory",
    "view_base",
]

#: The tensor that a view is a view of, as autograd has it; None for others. `x._base`, as a function.
view_base: Any = torch.Tensor._base.__get__  # type: ignore[union-attr]


neg_view = torch._neg_view


def storage_key(holder: Any) -> int:
    """A number that two tensors over one memory have in common, and two storages that are one; of a generator too."""
    storage = holder.untyped_storage() if isinstance(holder, torch.Tensor) else holder
    return int(storage._cdata)


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all zeros and has no memory, as some gradients of autograd."""
    return tensor._is_zerotensor()


def tensor_without_memory(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU of which sizes and strides are there, and nothing else: its storage has no address."""
    made: torch.Tensor = empty_strided_cpu(size, stride, dtype)
    take_memory(made)
    return made


def give_memory(storage: torch.UntypedStorage) -> None:
    """Let tensors without memory be read: nobody knows what is in them then."""
    storage._swap_data_ptr_(torch.UntypedStorage(storage.nbytes()))  # type: ignore[attr-defined]


def take_memory(tensor: torch.Tensor) -> None:
    """Let nobody read a tensor, or write to it."""
    storage = tensor.untyped_storage()
    nothing = torch._C._construct_storage_from_data_pointer(0, _CPU, storage.nbytes())
    storage._swap_data_ptr_(nothing)  # type: ignore[attr-defined]
    torch._C._set_throw_on_mutable_data_ptr(tensor)


_CPU = torch.device("cpu")


#: What torch says when someone asks for memory that is not there.
NO_MEMORY = (
    "data is not allocated yet",
    "Cannot access data pointer of Tensor",
    "unallocated storage",
    "invalid python storage",
)
