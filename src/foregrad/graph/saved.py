"""What a node of the autograd graph has saved for its backward, and the memory that this keeps alive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.core.spec import Spec
from foregrad.graph.policy import Packed, memory_of, spec_of
from foregrad.program.program import Program
from foregrad.torch_private.autograd_graph import saved_values
from foregrad.torch_private.pytree import tree_leaves


@dataclass(frozen=True)
class Saved:
    """A tensor that a node has saved: `self f32[8, 128]`."""

    name: str
    spec: Spec | None  # None if a hook packed it that is not known here
    policy: str  # what packed it: `save_on_cpu`, the name of a hook; "" if it is as it was
    place: str  # the device that holds it, or `disk`
    storages: dict[Any, int] = field(repr=False)  # bytes of the memory that it keeps alive, by what tells pieces apart

    @property
    def num_bytes(self) -> int:
        """Bytes that are kept alive; of a view, those of all that it is a view of."""
        return sum(self.storages.values())

    def __str__(self) -> str:
        text = f"{self.name} {self.spec}" if self.spec is not None else f"{self.name} {self.num_bytes} bytes"
        return f"{text} by {self.policy}" if self.policy else text


def saved(node: Any) -> list[Saved]:
    """The tensors that a node has saved, by name; nothing is unpacked. Empty once a backward has freed them."""
    return [_describe(*value) for value in saved_values(node)]


def saved_in(program: Program) -> dict[str, Saved]:
    """What the forward half of a program keeps for its backward half, by the name of the value."""
    return {
        one.name: Saved(one.name, one.spec, "", str(one.spec.device), {one.name: one.spec.num_bytes})
        for one in program.halves.saved
    }


def _describe(name: str, value: Any, unpack: Any) -> Saved:
    if isinstance(value, Packed):
        return Saved(name, value.spec, value.policy, value.place, value.memory())
    if unpack is None:
        return Saved(name, spec_of(value), "", str(value.device), memory_of([value]))
    tensors = [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
    place = str(tensors[0].device) if tensors else ""
    return Saved(name, None, getattr(unpack, "__qualname__", type(unpack).__name__), place, memory_of(tensors))
