"""Results: which tensors can be seen after the call, and which of them carry a gradient of their own.

A tensor that is an autograd view is re-made from its base after the call, so only bases matter here. A base is an
input, or a new tensor that the program returns, or another look at an input's memory with a history of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foregrad.record.inputs import Lifted
from foregrad.record.recording import Recording
from foregrad.record.trace import Alias, Storage
from foregrad.substrate import BackwardCFunction


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A tensor that others are views of, or that is no view: what the program returns, or what it writes to."""

    ghost: torch.Tensor
    alias: Alias
    kind: str  # "input": one of the inputs; "fresh": new memory; "alias": an input's memory, another history
    lifted: Lifted | None
    is_written: bool  # the function writes to this memory
    needs_tangent: bool
    has_data_history: bool  # autograd must see the write


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Every base, and the tensors (outputs, stored attributes) that are to be re-made from them."""

    bases: tuple[Base, ...]
    escaping: tuple[torch.Tensor, ...]

    @property
    def sources(self) -> list[torch.Tensor]:
        return [b.ghost for b in self.bases if b.needs_tangent]


def base_of(ghost: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd takes this one for a view of; a view made by a custom Function is its own base."""
    if ghost._base is None or isinstance(ghost.grad_fn, BackwardCFunction):
        return ghost
    return ghost._base


def find_results(recording: Recording, stored: list[torch.Tensor]) -> Results:
    recorder = recording.recorder
    written = written_storages(recording)
    renamed = {op.renames.object for op in recorder.ops[: recording.num_forward] if op.renames is not None}
    rebased = {number for op in recorder.ops[: recording.num_forward] for number in op.rebased}
    by_ghost = {id(lifted.ghost): lifted for lifted in recording.inputs.all}
    outputs = [o for o in (*recording.outputs, *stored) if isinstance(o, torch.Tensor)]
    escaping = {id(t): t for t in (*outputs, *(lifted.ghost for lifted in recording.inputs.all))}
    for ghost in list(escaping.values()):
        for source in _taken_from(recording, ghost):
            escaping.setdefault(id(source), source)
    bases: dict[int, Base] = {}
    for ghost in escaping.values():
        base = base_of(ghost)
        if id(base) in bases:
            continue
        alias = recorder.alias(base)
        lifted = by_ghost.get(id(base))
        kind = "input" if lifted else ("alias" if alias.storage.kind == "input" else "fresh")
        has_history = base.requires_grad and base.grad_fn is not None
        if lifted is not None:
            has_history = lifted.was_rebased and (alias.object in rebased or alias.object not in renamed)
        bases[id(base)] = Base(
            base, alias, kind, lifted, _first_storage(recording, base) in written, has_history, has_history
        )
    return Results(tuple(bases.values()), tuple(escaping.values()))


def _first_storage(recording: Recording, ghost: torch.Tensor) -> Storage:
    """The storage that an object had when the function first saw it."""
    alias = recording.recorder.alias(ghost)
    for op in recording.recorder.ops[: recording.num_forward]:
        if op.renames is not None and op.renames.object == alias.object:
            return op.renames.storage
    return alias.storage


def _taken_from(recording: Recording, ghost: torch.Tensor) -> list[torch.Tensor]:
    """Tensors whose memory an object took over by `set_` or `.data =`: they must exist after the call too."""
    alias = recording.recorder.alias(ghost)
    found = []
    for op in recording.recorder.ops[: recording.num_forward]:
        if op.renames is not None and op.renames.object == alias.object:
            found += [recording.recorder.objects[a.object] for a in op.args[1:] if isinstance(a, Alias)]
    return found


def written_storages(recording: Recording) -> set[Storage]:
    """Storages that the forward writes to."""
    ops = recording.recorder.ops[: recording.num_forward]
    return {alias.storage for op in ops for alias in op.writes}


__all__ = ["Base", "Results", "base_of", "find_results", "written_storages"]
