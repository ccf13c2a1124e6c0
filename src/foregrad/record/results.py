"""Results: which tensors can be seen after the call, and which of them carry a gradient of their own.

A tensor that is an autograd view is re-made from its base after the call, so only bases matter here. A base is an
input, or a new tensor that the program returns, or another look at an input's memory with a history of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.history import history_of
from foregrad.record.lift.inputs import Lifted
from foregrad.record.ops import Alias, Op, Storage
from foregrad.record.recorder import Recorder
from foregrad.record.recording import Recording
from foregrad.torch_private.autograd import BackwardCFunction, version_of
from foregrad.torch_private.tensors import view_base


@dataclass(frozen=True, slots=True, eq=False)
class Base:
    """A tensor that others are views of, or that is no view: what the program returns, or what it writes to."""

    ghost: torch.Tensor
    alias: Alias
    kind: str  # "input": one of the inputs; "fresh": new memory; "alias": an input's memory, another history
    lifted: Lifted | None
    needs_tangent: bool  # it has a history of its own, which a write to it must show to autograd
    version: int  # of the ghost, after the forward


@dataclass(frozen=True, slots=True, eq=False)
class Results:
    """Every base, and the tensors (outputs, stored attributes) that are to be re-made from them."""

    bases: tuple[Base, ...]
    escaping: tuple[torch.Tensor, ...]
    made_of: frozenset[int]  # objects: these, and those that they are made from
    renames: dict[int, list[Op]]  # changes of metadata, by object

    @property
    def sources(self) -> list[torch.Tensor]:
        return [b.ghost for b in self.bases if b.needs_tangent]


def is_function_view(ghost: torch.Tensor) -> bool:
    """Whether a custom Function made this tensor as a view: autograd cannot re-make it from what it is a view of."""
    return view_base(ghost) is not None and isinstance(history_of(ghost), BackwardCFunction)


def base_of(recorder: Recorder, ghost: torch.Tensor) -> torch.Tensor:
    """The tensor to re-make this one from: the one that autograd takes it for a view of, or the custom Function's view
    between the two."""
    base = view_base(ghost)
    if base is None:
        return ghost
    at: Alias | None = recorder.alias(ghost)
    while at is not None and at.object != recorder.alias(base).object:
        if is_function_view(recorder.objects[at.object]):
            return recorder.objects[at.object]
        at = at.parent
    return recorder.objects[recorder.alias(base).object]  # the base of a leaf that is a view stands for that leaf


def find_results(recording: Recording, stored: list[torch.Tensor]) -> Results:
    recorder = recording.recorder
    ops = recorder.ops[: recording.num_forward]
    renames: dict[int, list[Op]] = {}
    for op in ops:
        if op.renames is not None:
            renames.setdefault(op.renames.object, []).append(op)
    by_ghost = {id(lifted.ghost): lifted for lifted in recording.inputs.all}
    inputs = [lifted.ghost for lifted in recording.inputs.all]
    escaping, made_of = _escaping(recording, [*recording.results, *stored, *inputs], renames)
    bases: dict[int, Base] = {}
    _refuse_stale(recording)
    for ghost in escaping:
        base = base_of(recorder, ghost)
        if id(base) not in by_ghost or recorder.memory[recorder.alias(base).storage].num_writes:
            _refuse_cut_off(recorder, ghost, base, renames)
        if id(base) in bases:
            continue
        alias = recorder.alias(base)
        lifted = by_ghost.get(id(base))
        kind = "input" if lifted else ("alias" if alias.storage.kind == "input" else "fresh")
        has_history = base.requires_grad and history_of(base) is not None
        if lifted is not None:
            has_history = _is_rebased(lifted, renames.get(alias.object, ()))
        bases[id(base)] = Base(base, alias, kind, lifted, has_history, version_of(base))
    return Results(tuple(bases.values()), escaping, made_of, renames)


def _refuse_stale(recording: Recording) -> None:
    """Autograd refuses to use a view that a custom Function has made and whose memory was written since. Made again, it
    would be a tensor without a gradient."""
    for ghost in recording.results:
        try:
            _ = ghost.grad_fn
        except RuntimeError as error:
            if "inside a custom Function" in str(error):
                alias = recording.recorder.alias(ghost)
                raise CaptureError(
                    f"the function returns a view {alias.spec} that a custom Function has made, after a write to its "
                    f"memory: autograd refuses to use it.\n{recording.definition}\nReturn a clone() from the custom "
                    "Function, or write before it."
                ) from None


def _refuse_cut_off(recorder: Recorder, ghost: torch.Tensor, base: torch.Tensor, renames: dict[int, list[Op]]) -> None:
    """A view keeps the history that it got before its base was cut off from it; made again, it would have none."""
    alias = recorder.alias(ghost)
    if base is ghost or not ghost.requires_grad:
        return
    changes = renames.get(alias.object)
    first = changes[0].renames if changes else alias
    while first is not None and first.parent is not None and first.parent.object != recorder.alias(base).object:
        first = first.parent  # a view of a view got its history from that one
    for op in renames.get(recorder.alias(base).object, ()):
        if op.func is torch.ops.aten.detach_.default and first is not None and op.index > (first.op or -1):
            raise CaptureError(
                f"the function cuts a tensor off from its history in place, and a view of it {alias.spec}, which was "
                f"made before and has a history, can be seen after the call.\n  at {op.origin}\n"
                "Make a new tensor, with .detach()."
            )


def _is_rebased(lifted: Lifted, changes: Sequence[Op]) -> bool:
    """Whether autograd gave an input another history, besides what changes of its geometry add to it: these are
    replayed."""
    node = lifted.history
    for op in reversed(changes):
        if op.func is torch.ops.aten.detach_.default:
            return node is not None
        if op.adds_node:
            node = None if node is None else node.next_functions[0][0]
    return node is not lifted.entry_node


def _escaping(
    recording: Recording, seen: list[torch.Tensor], renames: dict[int, list[Op]]
) -> tuple[tuple[torch.Tensor, ...], frozenset[int]]:
    """Tensors that can be seen after the call, and those whose memory they took over by `set_` or `.data =`; and all
    objects that these are made from."""
    recorder = recording.recorder
    escaping = {id(t): t for t in seen}
    visited: set[int] = set()
    stack = [recorder.alias(t) for t in seen]
    while stack:
        alias = stack.pop()
        if alias.object in visited:
            continue
        visited.add(alias.object)
        for op in renames.get(alias.object, ()):
            taken = [a for a in op.args[1:] if isinstance(a, Alias)]
            stack += taken
            for source in taken:
                ghost = recorder.objects[source.object]
                escaping.setdefault(id(ghost), ghost)
        at: Alias | None = alias
        while at is not None:
            stack += [at] if at.object != alias.object else []
            at = at.parent
    return tuple(escaping.values()), frozenset(visited)


def written_storages(recording: Recording) -> set[Storage]:
    """Storages that the forward writes to."""
    ops = recording.recorder.ops[: recording.num_forward]
    return {alias.storage for op in ops for alias in op.writes}


def joined_storages(recording: Recording) -> set[Storage]:
    """Storages of which a program takes one input alone, the base, and reads the others from it: those that the forward
    writes to, and those in which it changes the geometry of a view that has a history."""
    return written_storages(recording) | {lifted.alias.storage for lifted in reshaped_views(recording)}


def rebased_storages(recording: Recording) -> set[Storage]:
    """Joined storages in which autograd gives a view another history, so that gradients arrive at the base alone. A
    write that autograd does not count, to the `.data` of a tensor, leaves each view its own."""
    joined = joined_storages(recording)
    inputs = [lifted for lifted in recording.inputs.all if lifted.alias.storage in joined]
    return {one.alias.storage for one in inputs if version_of(one.ghost) != one.version or one.was_rebased}


def reshaped_views(recording: Recording) -> list[Lifted]:
    """Inputs, views of others, that get a gradient, and whose geometry the function changes, in memory that it does not
    write to."""
    written = written_storages(recording)
    views = [lifted for lifted in recording.inputs.all if lifted.base is not None and lifted.edge is not None]
    return [lifted for lifted in views if lifted.alias.storage not in written and lifted.was_rebased]
