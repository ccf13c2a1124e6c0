"""Freeze: from a stage of a recording, with its ghosts, to a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.history import is_flagged, is_leaf
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.ops import Alias, ItemOf, Op, Storage
from foregrad.record.recorder import Recorder
from foregrad.record.recording import Backward, Recording
from foregrad.record.results import Base, is_function_view, joined_storages, reshaped_views
from foregrad.record.stage import Stage
from foregrad.record.symbols.data_values import item_of
from foregrad.record.trace import (
    AnyInput,
    EngineRun,
    OuterRef,
    Ref,
    Trace,
    TracedBackward,
    TracedBase,
    TracedInput,
    Wrap,
    Wrapping,
)
from foregrad.record.wrapper_results import WrappedResult
from foregrad.torch_private.tensors import view_base


def freeze(stage: Stage) -> Trace:
    """All that later stages need of what was recorded. Inputs have their names."""
    recording, results, recorder = stage.recording, stage.results, stage.recording.recorder
    inputs, memory = recording.inputs, recorder.memory
    last = stage.backward or stage.earlier
    names = {lifted.alias.object: lifted.name for lifted in inputs.all}
    numbers = results.made_of | {base.alias.object for base in results.bases}
    made_of = [(number, recorder.objects[number]) for number in numbers]
    return Trace(
        ops=last.ops if last else tuple(recorder.ops[: recording.num_forward]),
        num_forward=recording.num_forward,
        phase=stage.phase,
        earlier=tuple(map(_backward, stage.earlier.chain)) if stage.earlier else (),
        backward=_backward(stage.backward) if stage.backward else None,
        survey=stage.survey,
        inputs=tuple(inputs.traced(lifted) for lifted in inputs.all),
        gradients=tuple(traced(recording, one) for one in stage.inputs),
        questions=tuple(recorder.values.questions.all),
        python_calls=tuple(recorder.python_calls.all),
        constants=dict(recorder.constants),
        generators=dict(recorder.generators.drawn),
        joined=frozenset(joined_storages(recording)),
        reshaped=frozenset(inputs.traced(lifted) for lifted in reshaped_views(recording)),
        live=frozenset(recorder.live),
        live_objects=stage.live,
        bases=tuple(_base(stage, base, names) for base in results.bases),
        escaping=tuple(recorder.alias(ghost).object for ghost in results.escaping),
        results=tuple(
            ItemOf(recorder.alias(o)) if place in recording.items else _refer(o, recorder)
            for place, o in enumerate(recording.outputs)
        ),
        structure=recording.structure,
        returned=frozenset(recorder.alias(t).object for t in recording.results),
        stored=tuple((store.slot.name, _refer(store.value, recorder)) for store in stage.stored),
        grads=tuple((_refer(t, recorder), _refer(g, recorder)) for t, g in stage.grads),
        replaced_grads=_replaced_grads(recording),
        retained=tuple(dict.fromkeys(recorder.alias(t).object for t in stage.retained)),
        wrapping=_wrapping(recording, stage.backward),
        leaves_grad_mode=recording.leaves_grad_mode,
        renames={number: tuple(ops) for number, ops in results.renames.items()},
        objects=tuple(map(recorder.alias, recorder.objects)),
        roots={storage: block.root for storage, block in memory.items() if block.aliases},
        shown={storage: tuple(block.aliases) for storage, block in memory.items() if storage.kind == "input"},
        grown=frozenset(storage for storage, block in memory.items() if block.is_grown),
        leaves=frozenset(number for number, ghost in made_of if is_leaf(ghost)),
        flagged=frozenset(number for number, ghost in made_of if is_flagged(ghost)),
        silent=frozenset(recorder.silent),
        unshared=frozenset(recording.intercept.unshared),
        flags=tuple(recording.intercept.flags),
        hooks=tuple((lifted.alias.object, hook) for lifted, hook in recording.grads.hooks.registered.values()),
        runs=tuple(_engine_runs(recording)),
        has_sizes=recording.sizes is not None,
        device=recorder.device.true,
    )


@dataclass(frozen=True)
class PartialTrace:
    """What was recorded so far, while the function still runs: what it takes to compute a value."""

    ops: tuple[Op, ...]
    inputs: tuple[TracedInput, ...]
    joined: frozenset[Storage]
    constants: Mapping[Storage, torch.Tensor]
    generators: Mapping[torch.Generator, str]
    roots: Mapping[Storage, Alias]
    shown: Mapping[Storage, tuple[Alias, ...]]
    grown: frozenset[Storage]
    has_sizes: bool
    device: torch.device | None


def freeze_so_far(recording: Recording) -> PartialTrace:
    """All that was recorded so far. Inputs have no names yet."""
    recorder, memory = recording.recorder, recording.recorder.memory
    return PartialTrace(
        ops=tuple(recorder.ops),
        inputs=tuple(map(recording.inputs.as_it_is, recording.inputs.all)),
        joined=frozenset(alias.storage for op in recorder.ops for alias in op.writes)
        | {lifted.alias.storage for lifted in recording.inputs.all if lifted.base is not None and lifted.was_rebased},
        constants=recorder.constants,
        generators=recorder.generators.drawn,
        roots={storage: block.root for storage, block in memory.items() if block.aliases},
        shown={storage: tuple(block.aliases) for storage, block in memory.items() if storage.kind == "input"},
        grown=frozenset(storage for storage, block in memory.items() if block.is_grown),
        has_sizes=recording.sizes is not None,
        device=recorder.device.true,
    )


def traced(recording: Recording, one: Lifted | Outer) -> AnyInput:
    """What a trace says of an input."""
    return recording.inputs.traced_outer(one) if isinstance(one, Outer) else recording.inputs.traced(one)


def _backward(backward: Backward) -> TracedBackward:
    return TracedBackward(
        phase=backward.phase,
        start=backward.start,
        end=len(backward.ops),
        tangents=tuple(None if tangent is None else tangent.alias for tangent in backward.tangents),
        gradients=backward.aliases,
        wholes=backward.wholes,
        num_slots=len(backward.arrived),
        error=backward.error,
    )


def _base(stage: Stage, base: Base, names: dict[int, str]) -> TracedBase:
    recording = stage.recording
    return TracedBase(
        alias=base.alias,
        kind=base.kind,
        input=None if base.lifted is None else recording.inputs.traced(base.lifted),
        name=_result_name(stage, base, names),
        version=base.version,
        needs_tangent=base.needs_tangent,
        requires_grad=base.ghost.requires_grad,
        is_root=base.alias is recording.recorder.memory[base.alias.storage].root,
        is_function_view=is_function_view(base.ghost),
    )


def _result_name(stage: Stage, base: Base, names: dict[int, str]) -> str:
    """Where a tensor, or views of it, stand among the results and in the .grad of others; `names` are of inputs."""
    recording = stage.recording
    if base.lifted is not None:
        return base.lifted.name
    places = [
        str(i)
        for i, o in enumerate(recording.outputs)
        if isinstance(o, torch.Tensor) and (o is base.ghost or view_base(o) is base.ghost)
    ]
    places += _part_names(stage, base.ghost)
    owners = [owner for owner, grad in stage.grads if grad is base.ghost and isinstance(owner, torch.Tensor)]
    numbers = [recording.recorder.alias(owner).object for owner in owners]
    places += [f"{names.get(number, f'object {number}')}.grad" for number in numbers]
    return ",".join(places) or f"object {base.alias.object}"


def _part_names(stage: Stage, ghost: torch.Tensor) -> list[str]:
    """The names of a tensor that is a part of results, or of what the function leaves in a .grad or in state."""
    recording, wrapped = stage.recording, stage.recording.wrapped
    owners = {grad.index: owner for owner, grad in stage.grads if isinstance(grad, OuterRef) and grad.letter == "u"}
    found = []
    for index, made in enumerate(wrapped.made):
        places = [
            str(i) for i, o in enumerate(recording.outputs) if isinstance(o, OuterRef) and o == OuterRef("u", index)
        ]
        places = places or [outer.name for outer, ref in wrapped.rewritten if ref.index == index]
        stored = f"{_owner_name(recording, owners[index])}.grad" if index in owners else wrapped.names.get(index)
        places = places or [stored or f"object {index}"]
        if isinstance(made, WrappedResult):
            pairs = zip(made.parts, made.paths, strict=True)
            found += [place + path for part, path in pairs if part is ghost for place in places]
    return found


def _owner_name(recording: Recording, owner: Any) -> str:
    """The name of an input, as a tensor or by its place."""
    found = recording.inputs.outer[owner.index] if isinstance(owner, OuterRef) else recording.inputs.of_ghost(owner)
    return "a result" if found is None else found.name


def _wrapping(recording: Recording, backward: Backward | None) -> Wrapping:
    inputs, alias = recording.inputs, recording.recorder.alias
    return Wrapping(
        inputs=tuple(map(inputs.traced_outer, inputs.outer)),
        made=tuple(
            Wrap(one.recipe, tuple(alias(part).object for part in one.parts), one.form, one.version)
            if isinstance(one, WrappedResult)
            else one
            for one in recording.wrapped.made
        ),
        rewritten=tuple((inputs.traced_outer(outer), ref) for outer, ref in recording.wrapped.rewritten),
        gradients=() if backward is None else backward.wholes,
    )


def _replaced_grads(recording: Recording) -> tuple[tuple[int, TracedInput], ...]:
    """Inputs whose .grad is another one after the function, and the one on entry."""
    pairs = [(o, g) for o, g in recording.grads.assumed() if isinstance(o, Lifted) and isinstance(g, Lifted)]
    return tuple(
        (owner.alias.object, recording.inputs.traced(grad))
        for owner, grad in pairs
        if owner.ghost.grad is not grad.ghost
    )


def _engine_runs(recording: Recording) -> list[EngineRun]:
    """Backwards inside the function that have reached inputs with a history."""
    alias = recording.recorder.alias
    return [
        EngineRun(
            place=run.place,
            inputs=tuple(lifted.alias.object for lifted, _ in run.reached),
            gradients=tuple(alias(gradient).object for _, gradient in run.reached),
            retain_graph=run.retain_graph,
            create_graph=run.create_graph,
        )
        for run in recording.grads.beyond.onward
    ]


def _refer(value: Any, recorder: Recorder) -> Any:
    """A value with `Ref`s for its tensors."""
    if recorder.sizes is not None and recorder.sizes.varies(value):
        return recorder.sizes.plain(value)
    if isinstance(value, torch.Tensor):
        return Ref(recorder.alias(value).object) if recorder.knows(value) else value
    item = item_of(value)
    if item is not None:
        return ItemOf(recorder.alias(item.tensor))
    if type(value) is dict:
        return {k: _refer(v, recorder) for k, v in value.items()}
    return type(value)(_refer(v, recorder) for v in value) if type(value) in (list, tuple) else value
