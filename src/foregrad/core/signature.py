"""Signature: a name and a role for every value that enters or leaves a program."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.spec import NumberSpec, Spec
from foregrad.core.tokens import TOKEN_ROLES

#: What an input of a program can be.
INPUT_ROLES = {
    "param": "a parameter of a module, by its path",
    "buffer": "a buffer of a module, by its path",
    "input": "a tensor among the arguments, by its argument's name",
    "state": "a tensor of declared state, such as an optimizer's",
    "closure": "a tensor that the function uses without being given it",
    "base": "the whole tensor behind arguments that overlap in memory",
    "live": "an input as it is when backward runs, not as it was in forward",
    "number": "a number of Python's, read from declared state or computed from such numbers, at each call",
    "size": "the size of a dimension that varies, which compiled code takes",
    "tangent": "the gradient that arrives for an output or a written input",
    "saved": "a value that forward kept for backward",
    "rng": "the state of a generator: that of a device, or one of the user's, by its name",
    "rng in backward": "the same when backward runs",
    "token": "the world before the first effect of a kind",
    "token in backward": "the same when backward runs",
}

#: What an output of a program can be.
OUTPUT_ROLES = {
    "output": "a tensor of the result or a new .grad, or the tensor that some of them are views of",
    "write": "the new contents of an input",
    "answer": "a value that Python has asked for: the program is for calls with this answer",
    "python": "a value that a function of `fg.python` is given at each call",
    "grad": "the gradient of an input",
    "write in backward": "the new contents of an input, written while backward runs",
    "saved": "a value kept for backward",
    "rng": "the state of a generator after the last draw",
    "rng in backward": "the same after backward",
    "token": "the world after the last effect of a kind",
    "token in backward": "the same after backward",
}


@dataclass(frozen=True, slots=True)
class Input:
    """One value that enters: `param blocks.0.weight: f32[8, 8]`."""

    role: str
    name: str
    spec: Spec

    def __str__(self) -> str:
        return f"{self.role} {self.name}: {self.spec}"


@dataclass(frozen=True, slots=True)
class Output:
    """One value that leaves: `grad blocks.0.weight: f32[8, 8]`; its spec is None for a gradient that is always None."""

    role: str
    name: str
    spec: Spec | None

    def __str__(self) -> str:
        return f"{self.role} {self.name}: {self.spec}"


@dataclass(frozen=True, slots=True)
class Signature:
    """Every input and output of a program, in the order of its graph."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]

    def filled(self, values: Sequence[Any]) -> Sequence[Any]:
        """Values with nothing for each token, which come last, if only the others are given."""
        num = len(self.inputs_of(*TOKEN_ROLES))
        return (*values, *[None] * num) if len(values) + num == len(self.inputs) else values

    def mismatches(self, values: Sequence[Any]) -> list[str]:
        """What is wrong with values that are to be the inputs, one line each."""
        if len(values) != len(self.inputs):
            return [f"{len(self.inputs)} inputs were captured, {len(values)} are given"]
        given = [Spec.of(v) if isinstance(v, torch.Tensor) else NumberSpec.of(v) for v in values]
        width = max((len(i.name) for i in self.inputs), default=0)
        return [
            f"{expected.name:<{width}}  captured as {expected.spec}, given {found}"
            for expected, found in zip(self.inputs, given, strict=True)
            if not expected.spec.matches(found)
        ]

    def inputs_of(self, *roles: str) -> tuple[Input, ...]:
        return tuple(i for i in self.inputs if i.role in roles)

    def outputs_of(self, *roles: str) -> tuple[Output, ...]:
        return tuple(o for o in self.outputs if o.role in roles)


def identifier(name: str) -> str:
    """A name that Python can use: `blocks.0.weight` gives `blocks_0_weight`."""
    text = re.sub(r"\W+", "_", name).strip("_")
    return text if text and not text[0].isdigit() else f"v_{text}"


def unused(name: str, taken: set[str]) -> str:
    """A name that is not taken, with a number if it has to be; it is taken then."""
    number, found = 1, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found
