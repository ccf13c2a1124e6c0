"""Bumps: version counters that the writes of a backward have moved, while it is recorded.

Each backward begins where the forward has left them. One that follows another begins where that has left them, also
if a third was recorded since.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from foregrad.record.ops import Op
from foregrad.torch_private.autograd import set_version, version_of


class Bumps:
    def __init__(self) -> None:
        self._made: list[tuple[int, torch.Tensor, int]] = []  # op, tensor, version before
        self._undone: dict[Op, list[tuple[torch.Tensor, int, int]]] = {}  # tensor, version before and after

    def note(self, index: int, tensor: torch.Tensor, phase: int) -> None:
        """The op at this place is about to write to a tensor; in the forward that stays."""
        if phase:
            self._made.append((index, tensor, version_of(tensor)))

    def undo(self, ops: Sequence[Op], start: int) -> None:
        """Put back what the ops from this one on have moved."""
        while self._made and self._made[-1][0] >= start:
            index, tensor, before = self._made.pop()
            for op in ops[index : index + 1]:
                self._undone.setdefault(op, []).append((tensor, before, version_of(tensor)))
            set_version(tensor, before)

    def redo(self, ops: Sequence[Op]) -> None:
        """Move again what these ops had moved."""
        for op in ops:
            for tensor, before, after in reversed(self._undone.pop(op, [])):
                self._made.append((op.index, tensor, before))
                set_version(tensor, after)
