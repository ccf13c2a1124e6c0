"""Memory behind an input: a tensor can show the beginning of its memory only, and a recording knows no more of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.ghosts.allocate import ghost_over, ghost_storage
from foregrad.record.ghosts.devices import META
from foregrad.record.ghosts.storages import StorageTable
from foregrad.record.ops import Storage
from foregrad.record.set_storage import SETS
from foregrad.torch_private.tensors import storage_key


def refuse_memory_behind(
    func: Any, args: Any, kwargs: Any, storages: dict[int, Storage], memory: StorageTable, where: Callable[[], str]
) -> None:
    """Refuse an op that has failed on ghosts and would not on tensors, whose memory goes on behind what they show."""
    found = [storages.get(storage_key(a)) if isinstance(a, torch.Tensor) else None for a in args]
    sizes = [0 if one is None else memory[one].num_bytes for one in found]
    if any(sizes) and _succeeds(func, args, kwargs, sizes):
        raise CaptureError(
            f"{func} reaches into memory behind a tensor that the function was given.\n{where()}\nPass all of its "
            "memory, or a copy."
        )


def _succeeds(func: Any, args: Any, kwargs: Any, sizes: list[int]) -> bool:
    """Whether an op can be run on tensors with so much memory. `set_` makes a storage larger that is too small."""
    make = _without_end if func in SETS else _with_memory
    given = [make(a, size) if isinstance(a, torch.Tensor) else a for a, size in zip(args, sizes, strict=True)]
    try:
        func(*given, **kwargs)
    except RuntimeError:
        return False
    return True


def _with_memory(ghost: torch.Tensor, num_bytes: int) -> torch.Tensor:
    num_bytes = max(num_bytes, ghost.untyped_storage().nbytes())
    return ghost_over(ghost_storage(num_bytes, ghost.device), ghost)


def _without_end(ghost: torch.Tensor, _: int) -> torch.Tensor:
    return torch.empty_strided(ghost.size(), ghost.stride(), dtype=ghost.dtype, device=META)
