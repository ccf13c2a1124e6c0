"""Memory: where tensors lie, and which of them share bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foregrad.substrate import FakeTensor
from foregrad.words.spec import Spec


def overlapping_groups(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Tensors that share bytes, directly or through others, or a storage, where they have none; in the order of their
    first members."""
    order = {id(t): i for i, t in enumerate(tensors)}
    groups: list[list[torch.Tensor]] = []
    reached = (-1, -1)
    for (block, start), size, _, tensor in sorted((address(t), Spec.of(t).num_bytes, order[id(t)], t) for t in tensors):
        if size and (block, start) < reached and block == reached[0]:
            groups[-1].append(tensor)
        else:
            groups.append([tensor])
        reached = max(reached, (block, start + size))
    if not all(Spec.of(t).num_bytes for t in tensors):
        groups = _with_empty_ones(groups)
    for group in groups:
        group.sort(key=lambda t: order[id(t)])
    return sorted(groups, key=lambda group: order[id(group[0])])


def _with_empty_ones(groups: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Groups joined with tensors without elements that lie in their memory."""
    joined: list[list[torch.Tensor]] = []
    first: dict[int, list[torch.Tensor]] = {}
    for group in sorted(groups, key=lambda group: not Spec.of(group[0]).num_bytes):
        storage = group[0].untyped_storage()._cdata
        if not Spec.of(group[0]).num_bytes and storage in first:
            first[storage] += group
        else:
            first.setdefault(storage, group)
            joined.append(group)
    return joined


def address(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins: a block of memory, and a byte in it. Tensors without data have storages for blocks."""
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return tensor.untyped_storage()._cdata, int(tensor.storage_offset()) * tensor.dtype.itemsize
    return 0, tensor.data_ptr()
