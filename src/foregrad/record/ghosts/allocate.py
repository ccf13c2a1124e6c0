"""Allocate ghosts: tensors that have sizes and strides, and no memory.

Ops below the recorder never touch the memory of a ghost. Whoever else asks for it, from NumPy to an extension in C++,
gets an error of torch's, which a recording turns into a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.record.ghosts.devices import META
from foregrad.torch_private.dispatch import fake_mode_is_on
from foregrad.torch_private.fake_tensors import FakeTensor
from foregrad.torch_private.tensors import give_memory, take_memory, tensor_without_memory


def new_ghost(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor without memory: whoever wants to read or write it gets an error, by whatever way he comes."""
    if device.type == "cpu" and not fake_mode_is_on(None):
        return tensor_without_memory(tuple(size), tuple(stride), dtype)
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def ghost_over(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A ghost with the geometry of a real tensor over a given storage; no autograd view of anything."""
    ghost = torch.empty(0, dtype=like.dtype, device=like.device if like.is_cpu else storage.device)
    return ghost.set_(storage, like.storage_offset(), like.size(), like.stride())


def ghost_storage(num_bytes: int, device: torch.device) -> torch.UntypedStorage:
    """Memory for the ghost of a tensor on this device."""
    carrier = device if device.type == "cpu" else META
    return new_ghost((num_bytes,), (1,), torch.uint8, carrier).untyped_storage()


@contextmanager
def memory_of(ghost: torch.Tensor) -> Iterator[None]:
    """Memory for a ghost that is resized: torch copies what was in it."""
    if not ghost.is_cpu or isinstance(ghost, FakeTensor):
        yield
        return
    give_memory(ghost.untyped_storage())
    try:
        yield
    finally:
        take_memory(ghost)
