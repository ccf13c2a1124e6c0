"""Memory: where tensors lie, and which of them share bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from foregrad.core.spec import Spec
from foregrad.torch_private.fake_tensors import FakeTensor
from foregrad.torch_private.tensors import storage_key


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


def groups_in_bases(
    tensors: Sequence[torch.Tensor], bases_of: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> list[list[torch.Tensor]]:
    """Overlapping groups, joined where a group is lifted with its bases: tensors in the memory of such a base belong to
    the group, too, also if they overlap no other member."""
    given = {id(t) for t in tensors}
    bases: dict[int, torch.Tensor] = {}
    while True:
        found = overlapping_groups([*tensors, *bases.values()])
        groups = [own for group in found if (own := [t for t in group if id(t) in given])]
        needed = {id(b): b for group in groups for b in bases_of(group) if id(b) not in given}
        if needed.keys() <= bases.keys():
            return groups
        bases |= needed


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors share bytes, or the range of one reaches into that of the other."""
    (a_block, a_start), (b_block, b_start) = address(a), address(b)
    a_end, b_end = a_start + Spec.of(a).num_bytes, b_start + Spec.of(b).num_bytes
    return a_block == b_block and a_start < b_end and b_start < a_end


def _with_empty_ones(groups: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
    """Groups joined with tensors without elements that lie in their memory."""
    joined: list[list[torch.Tensor]] = []
    first: dict[int, list[torch.Tensor]] = {}
    for group in sorted(groups, key=lambda group: not Spec.of(group[0]).num_bytes):
        storage = storage_key(group[0])
        if not Spec.of(group[0]).num_bytes and storage in first:
            first[storage] += group
        else:
            first.setdefault(storage, group)
            joined.append(group)
    return joined


def address(tensor: torch.Tensor) -> tuple[int, int]:
    """Where a tensor begins: a block of memory, and a byte in it. Tensors without data have storages for blocks."""
    if tensor.is_meta or isinstance(tensor, FakeTensor):
        return storage_key(tensor), int(tensor.storage_offset()) * tensor.dtype.itemsize
    return 0, tensor.data_ptr()
