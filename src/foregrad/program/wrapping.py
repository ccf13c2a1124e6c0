"""Wrapping: which tensors that wrap others stand at the edges of a program, and which of its values they wrap."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from foregrad.record.recording import Backward, Recording
from foregrad.record.wrapped import Outer
from foregrad.record.wrapped_results import Look, Made, OuterRef
from foregrad.words.wrapped import Form, Recipe
from foregrad.words.wrapping import Whole


@dataclass(frozen=True)
class Wrap:
    """A result to make: around these objects, with this version; `form` is that of its gradient, if it has one."""

    recipe: Recipe
    objects: tuple[int, ...]
    form: Form | None
    version: int


@dataclass(frozen=True)
class Wrapping:
    """Inputs that wrap others, results that do, and gradients that do."""

    inputs: tuple[Outer, ...] = ()
    made: tuple[Wrap | Look, ...] = ()
    rewritten: tuple[tuple[Outer, OuterRef], ...] = ()  # inputs that get the history of what was made
    gradients: tuple[Whole | None, ...] = ()  # for each gradient, how it is made; empty if all are plain


def wrapping_of(recording: Recording, backward: Backward | None) -> Wrapping:
    made = tuple(_wrap(recording, one) if isinstance(one, Made) else one for one in recording.wrapped.made)
    return Wrapping(
        inputs=tuple(recording.inputs.outer),
        made=made,
        rewritten=tuple(recording.wrapped.rewritten),
        gradients=() if backward is None else backward.wholes,
    )


def _wrap(recording: Recording, made: Made) -> Wrap:
    objects = tuple(recording.recorder.alias(part).object for part in made.parts)
    return Wrap(made.recipe, objects, made.form, made.version)


def part_names(recording: Recording, ghost: torch.Tensor) -> list[str]:
    """The names of a tensor that is a part of results."""
    found = []
    for index, made in enumerate(recording.wrapped.made):
        places = [
            str(i) for i, o in enumerate(recording.outputs) if isinstance(o, OuterRef) and o == OuterRef("u", index)
        ]
        places = places or [outer.name for outer, ref in recording.wrapped.rewritten if ref.index == index]
        if isinstance(made, Made):
            pairs = zip(made.parts, made.paths, strict=True)
            found += [place + path for part, path in pairs if part is ghost for place in places]
    return found


def gradient_names(names: list[str], wholes: tuple[Whole | None, ...]) -> list[str]:
    """The names of the values that gradients are made of."""
    pairs = zip(names, wholes or [None] * len(names), strict=True)
    return [name + path for name, whole in pairs for path in (("",) if whole is None else whole.paths)]
