"""Stage: what one program covers of a recording, with the ghosts that are needed to record more of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foregrad.record.lift.declared_state import StateStore
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.recording import Backward, Recording
from foregrad.record.results import Results
from foregrad.record.trace import Survey


@dataclass(frozen=True)
class Stage:
    """A forward and its backward.

    The stage after the first has the first's backward as its own forward, and the backward of the backward as its
    backward; it finds the values of earlier phases kept for it. `record/freeze.py` makes a trace of a stage.
    """

    recording: Recording
    results: Results
    inputs: tuple[Lifted | Outer, ...]  # those that get a gradient
    slots: tuple[Any, ...]  # where gradients arrive: for each of `inputs`, then for tangents of earlier stages
    sources: tuple[torch.Tensor, ...]  # where the backward starts
    backward: Backward | None
    survey: Survey | None = None  # of what lies between the two
    phase: int = 0
    earlier: Backward | None = None
    stored: tuple[StateStore, ...] = ()  # what the function puts into modules and declared state
    grads: tuple[tuple[Any, Any], ...] = ()  # which tensors get which .grad; an `OuterRef` for those that wrap others
    live: frozenset[int] = frozenset()  # inputs that an earlier program of the recording reads as backward finds them

    @property
    def retained(self) -> tuple[torch.Tensor, ...]:
        """Tensors, no leaves, that can be seen after the call and keep their gradient."""
        escaping = {id(t) for t in self.results.escaping}
        return tuple(t for t, _ in self.recording.intercept.retained if id(t) in escaping)
