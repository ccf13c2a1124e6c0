"""One library: a step that is one call of a shared library, told so that a program without Python can call it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from foregrad.backends.guarded_code import Guarded
from foregrad.backends.library import Library
from foregrad.core.generated import generated_of
from foregrad.core.signature import Input, Output
from foregrad.functionalize.graph_inputs import Given
from foregrad.record.lift.inputs import Inputs
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import TracedInput
from foregrad.runtime.compiled_stage import CompiledStage


def one_library(stage: CompiledStage, names: Mapping[int, str], blobs: Mapping[str, bytes]) -> dict[str, Any] | None:
    """How to call the library that a stage is; None where a call is more than that.

    `names` are those of the state's tensors, by their ids; the code is one of `blobs`.
    """
    library, donation, calling = _library(stage.run_forward), stage.donation, stage.program.calling
    if library is None or not library.is_plain or donation is None or calling.stored or stage.halves.saved:
        return None
    signature = stage.program.signature
    lifted = stage.stage.recording.inputs
    inputs = [_input(signature.inputs[place], calling.inputs[place], lifted, names) for place in donation.inputs]
    if None in inputs:
        return None
    by_content = {data: name for name, data in blobs.items()}
    return {
        "code": by_content[library.library.read_bytes()],
        "ops": by_content[library.ops.read_bytes()] if library.ops else None,
        "inputs": inputs,
        "outputs": [_about(signature.outputs[place]) for place in donation.outputs],
    }


def _library(run: Any) -> Library | None:
    """The library behind what checks a call, and what makes tensors of its numbers."""
    run = run.run if isinstance(run, Guarded) else run
    generated = generated_of(run)
    run = run if generated is None else generated.namespace.get("run")
    return run if isinstance(run, Library) else None


def _input(value: Input, given: Given, lifted: Inputs, names: Mapping[int, str]) -> dict[str, Any] | None:
    """An input, and where it is from: an argument, a tensor of the state, or a number that no step changes."""
    about = _about(value)
    if isinstance(given, Expression):
        return {**about, "value": given.value} if _is_constant(given) else None
    if not isinstance(given, TracedInput):
        return None
    if given.is_argument:
        return about
    name = names.get(id(lifted.reachable(given)))
    return None if name is None else {**about, "tensor": name}


def _is_constant(number: Expression) -> bool:
    """Whether a number depends on no tensor, such as the count of steps that an optimizer keeps in one."""
    if number.function is None:
        return not isinstance(number.source, torch.dtype)
    return all(_is_constant(a) for a in number.args if isinstance(a, Expression))


def _about(value: Input | Output) -> dict[str, Any]:
    return {"role": value.role, "name": value.name, "spec": str(value.spec)}
