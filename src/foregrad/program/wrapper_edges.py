"""Wrapper subclasses among the inputs and outputs of a program, and which of its values they wrap."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.wrapper_autograd import Whole
from foregrad.core.wrapper_subclass import GradientForm, WrapperRecipe
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.recording import Backward, Recording
from foregrad.record.wrapper_results import OuterRef, ResultView, WrappedResult


@dataclass(frozen=True)
class Wrap:
    """A result to make: around these objects, with this version; `form` is that of its gradient, if it has one."""

    recipe: WrapperRecipe
    objects: tuple[int, ...]
    form: GradientForm | None
    version: int


@dataclass(frozen=True)
class Wrapping:
    """Inputs that wrap others, results that do, and gradients that do."""

    inputs: tuple[Outer, ...] = ()
    made: tuple[Wrap | ResultView, ...] = ()
    rewritten: tuple[tuple[Outer, OuterRef], ...] = ()  # inputs that get the history of what was made
    gradients: tuple[Whole | None, ...] = ()  # for each gradient, how it is made; empty if all are plain


def wrapping_of(recording: Recording, backward: Backward | None) -> Wrapping:
    made = tuple(_wrap(recording, one) if isinstance(one, WrappedResult) else one for one in recording.wrapped.made)
    return Wrapping(
        inputs=tuple(recording.inputs.outer),
        made=made,
        rewritten=tuple(recording.wrapped.rewritten),
        gradients=() if backward is None else backward.wholes,
    )


def _wrap(recording: Recording, made: WrappedResult) -> Wrap:
    objects = tuple(recording.recorder.alias(part).object for part in made.parts)
    return Wrap(made.recipe, objects, made.form, made.version)


def part_names(recording: Recording, grads: Iterable[tuple[Any, Any]], ghost: torch.Tensor) -> list[str]:
    """The names of a tensor that is a part of results, or of what the function leaves in a .grad or in state."""
    owners = {grad.index: owner for owner, grad in grads if isinstance(grad, OuterRef) and grad.letter == "u"}
    found = []
    for index, made in enumerate(recording.wrapped.made):
        places = [
            str(i) for i, o in enumerate(recording.outputs) if isinstance(o, OuterRef) and o == OuterRef("u", index)
        ]
        places = places or [outer.name for outer, ref in recording.wrapped.rewritten if ref.index == index]
        stored = f"{_name(recording, owners[index])}.grad" if index in owners else recording.wrapped.names.get(index)
        places = places or [stored or f"object {index}"]
        if isinstance(made, WrappedResult):
            pairs = zip(made.parts, made.paths, strict=True)
            found += [place + path for part, path in pairs if part is ghost for place in places]
    return found


def _name(recording: Recording, owner: Any) -> str:
    """The name of an input, as a tensor or by its place."""
    found = recording.inputs.outer[owner.index] if isinstance(owner, OuterRef) else recording.inputs.of_ghost(owner)
    return "a result" if found is None else found.name


def gradient_names(names: list[str], wholes: tuple[Whole | None, ...]) -> list[str]:
    """The names of the values that gradients are made of."""
    pairs = zip(names, wholes or [None] * len(names), strict=True)
    return [name + path for name, whole in pairs for path in (("",) if whole is None else whole.paths)]
