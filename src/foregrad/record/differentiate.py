"""Differentiate: the backward of a recorded function, from every result that has a history to every input that wants a
gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from foregrad.core.errors import CaptureError
from foregrad.core.history import is_flagged
from foregrad.core.spec import Spec
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.recording import Backward, Recording, usual_layouts
from foregrad.record.results import Results, rebased_storages
from foregrad.record.saved_tensors import survey
from foregrad.record.stage import Stage
from foregrad.torch_private.fake_tensors import FakeTensor


def differentiate(recording: Recording, results: Results, stored: Any, grads: Any) -> Stage:
    """Record the backward from every result that has a history, to every input that wants a gradient."""
    inputs, slots = _slots(recording)
    sources = tuple(results.sources)
    stage = Stage(recording, results, tuple(inputs), tuple(slots), sources, None, stored=stored, grads=grads)
    if not sources:
        return stage
    _refuse_retained(stage)
    _refuse_renewed(stage)
    reals = [lifted.real for lifted in inputs if lifted.real is not None and lifted.real.requires_grad]
    reals = [real for real in reals if not isinstance(real, FakeTensor)]  # autograd may have no such device
    found = survey(recording, sources, [*slots, *reals])
    by_real = {id(real) for real, is_reached in zip(reals, found.reached[len(slots) :], strict=True) if is_reached}
    places = [i for i, lifted in enumerate(inputs) if found.reached[i] or id(lifted.real) in by_real]
    inputs, slots = [inputs[i] for i in places], [slots[i] for i in places]
    backward = _first_backward(recording, sources, inputs, slots)
    if recording.grads.is_nested:
        recording.accumulates = True
        inputs, slots = [*stage.inputs], [*stage.slots]
        backward = _first_backward(recording, sources, inputs, slots)
    if None in backward.tangents:
        some = [source for source, tangent in zip(sources, backward.tangents, strict=True) if tangent is not None]
        found = replace(found, saved=survey(recording, some, slots).saved)
    return replace(stage, inputs=tuple(inputs), slots=tuple(slots), backward=backward, survey=found)


def _refuse_retained(stage: Stage) -> None:
    """Results of one call are siblings: what is computed from one of them inside sends no gradient through it."""
    inputs = {id(lifted.ghost) for lifted in stage.recording.inputs.all}
    for tensor, origin in stage.recording.intercept.retained:
        if any(tensor is t for t in stage.retained) and id(tensor) not in inputs and len(stage.sources) > 1:
            raise CaptureError(
                f"the function keeps the gradient of a tensor {Spec.of(tensor)} that it returns beside others.\n"
                f"  at {origin}\nReturn it alone, or compute the others outside."
            )


def _refuse_renewed(stage: Stage) -> None:
    """`set_` gives a leaf another place where its gradient arrives, and a change of its shape makes this one expect
    another gradient; a call knows the tensors that it is given."""
    renames = stage.results.renames
    leaves = [
        lifted for lifted in stage.recording.inputs.all if lifted.edge is not None and lifted.slot is lifted.ghost
    ]
    changed = [lifted for lifted in leaves if lifted.alias.object in renames and lifted.ghost.is_leaf]
    places: list[Any] = [
        get_gradient_edge(one.ghost) if one.ghost.requires_grad else one.edge for one in changed
    ]  # one that `detach_` has made a plain tensor had a place before
    reached = survey(stage.recording, stage.sources, places).reached
    for lifted, place, is_reached in zip(changed, places, reached, strict=True):
        is_same = lifted.edge is not None and place.node is lifted.edge.node
        if is_reached and not (is_same and lifted.ghost.size() == lifted.alias.size):
            what = "another shape" if is_same else "other memory by `set_`"
            raise CaptureError(
                f"the function gives an input {lifted.spec} that needs a gradient {what}, and uses it afterwards.\n"
                f"  at {renames[lifted.alias.object][0].origin}\nWrite with copy_(), or use a view of it."
            )


def _first_backward(recording: Recording, sources: Any, inputs: list[Lifted | Outer], slots: list[Any]) -> Backward:
    """The backward from all results; if eager would refuse that, from those results for which it would not."""
    reals = [lifted.real for lifted in inputs]
    layouts = usual_layouts(sources)
    inner = _inner_leaves(recording)
    if inner:
        tried = recording.backward(sources, [*slots, *inner], layouts, reals=reals)
        seen = {id(o) for o in recording.outputs}
        reached = tried.arrived[len(slots) :]
        if any(id(leaf) in seen and g is not None for leaf, g in zip(inner, reached, strict=True)):
            raise CaptureError(
                "the function returns a leaf that it made itself, together with tensors that depend on it.\n"
                f"{recording.definition}\nMake the leaf outside, and pass it as an argument."
            )
        if tried.error is not None and len(sources) == 1:
            return tried
    whole = recording.backward(sources, slots, layouts, reals=reals)
    is_nested = recording.grads.is_nested and not recording.accumulates  # it is recorded again in another way
    if whole.error is None or len(sources) == 1 or is_nested:
        return whole
    fine: list[tuple[int, ...] | None] = []
    for place, stride in enumerate(layouts):
        alone = tuple(stride if i == place else None for i in range(len(sources)))
        refused = recording.backward(sources, slots, alone, reals=reals).error is not None
        fine.append(None if refused else stride)
    return whole if fine == [None] * len(fine) else recording.backward(sources, slots, tuple(fine), reals=reals)


def _inner_leaves(recording: Recording) -> list[torch.Tensor]:
    """Leaves that the function made itself."""
    known = {id(t) for lifted in recording.inputs.all for t in (lifted.ghost, lifted.slot)}
    return [t for t in recording.recorder.objects if id(t) not in known and is_flagged(t)]


def _slots(recording: Recording) -> tuple[list[Lifted | Outer], list[Any]]:
    """The inputs that want a gradient, and where in the autograd graph it arrives."""
    written = rebased_storages(recording)
    wrapped = [outer for outer in recording.inputs.outer if outer.edge is not None]
    inputs: list[Lifted | Outer] = [*wrapped]
    slots: list[torch.Tensor | GradientEdge | None] = [outer.edge for outer in wrapped]
    for lifted in recording.inputs.all:
        is_group_written = lifted.alias.storage in written
        if lifted.base is None and not (lifted.is_hidden and not is_group_written):
            ghost = lifted.ghost
            leaf = ghost if lifted.slot is None and ghost.requires_grad and ghost.is_leaf else lifted.slot
            if leaf is not None:
                inputs.append(lifted)
                slots.append(leaf if lifted.edge is None else lifted.edge)
        elif lifted.base is not None and is_flagged(lifted.ghost):
            if is_group_written:
                raise CaptureError(
                    f"the function tells an input {lifted.spec} to require a gradient, and writes to memory that it "
                    f"shares with another.\n{recording.definition}\nPass copies, or do either of it outside."
                )
            inputs.append(lifted)
            slots.append(lifted.ghost)
        elif lifted.base is not None and lifted.edge is not None and not is_group_written:
            inputs.append(lifted)
            slots.append(lifted.edge)
            if not lifted.base.is_hidden:
                # The base is an input too: what arrives at its view has been counted there.
                lifted.edge.node.register_prehook(lambda grads: tuple(None for _ in grads))
    return inputs, slots
