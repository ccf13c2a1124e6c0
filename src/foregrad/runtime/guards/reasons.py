"""Reasons: why a call was captured anew, in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foregrad.core.generated import Check
from foregrad.record.lift.argument_objects import GivenNumber
from foregrad.torch_private.dispatch import autocast_state
from foregrad.torch_private.pytree import GivenObject

_MOST_SHOWN = 8
_LONGEST = 200
_DEEPEST = 5


def describe_call(captured: Any) -> dict[str, str]:
    """What a capture assumed, by name, as text that can be compared with another call's."""
    told = {
        "grad mode": str(torch.is_grad_enabled()),
        "inference mode": str(torch.is_inference_mode_enabled()),
        "autocast": str(autocast_state(["cpu", "cuda"])),
        "default dtype": str(torch.get_default_dtype()),
        "deterministic algorithms": str(torch.are_deterministic_algorithms_enabled()),
        "number of arguments": str(len(captured.arguments)),
    }
    for name, value in captured.arguments.items():
        if not isinstance(value, torch.Tensor):
            told[name] = _text(value)
    for lifted in captured.stage.recording.inputs.all:
        leaf = "leaf" if lifted.is_leaf else "not a leaf"
        wants = f" that needs a gradient, {leaf}" if lifted.required_grad else ""
        told[lifted.name] = f"{lifted.spec.plain()} of type {type(lifted.real).__name__}{wants}"
        if lifted.base is not None:
            told[f"memory of {lifted.name}"] = f"part of {lifted.base.name}"
    for outer in captured.stage.recording.inputs.outer:
        leaf = "leaf" if outer.is_leaf else "not a leaf"
        told[outer.name] = f"{outer.recipe}{f' that needs a gradient, {leaf}' if outer.required_grad else ''}"
    for variable in captured.variables:
        if isinstance(variable.value, (bool, int, float, str, list, tuple, dict)):
            told[f"variable {variable.name}"] = _text(variable.value)
    for container in captured.declared.containers:
        told[f"entries in {container.slot.name}"] = str(len(container.items))
    for one in captured.declared.numbers.told:
        told[f"{one.expression.text} ({one.line})"] = repr(one.value)
    for number, question in enumerate(captured.trace.questions):
        told[f"answer {number} ({question.line})"] = question.text
    for module in captured.modules:
        told[f"{type(module).__name__} {captured.stage.recording.modules.path(module)}"] = _module_text(module)
    return told


def reason_for(told: dict[str, str], before: list[dict[str, str]], changed: Sequence[str] = ()) -> str:
    """What differs from the most similar earlier capture, or what has `changed` in Python since."""
    if not before:
        return "first call"
    differences = [[name for name in {**old, **told} if old.get(name) != told.get(name)] for old in before]
    best = min(range(len(before)), key=lambda i: len(differences[i]))
    if not differences[best]:
        return changed[-1] if changed else "the same call, but the overlap of memory, or hooks of a tensor, differ"
    shown = differences[best][:_MOST_SHOWN]
    parts = [f"{name} was {before[best].get(name)}, is {told.get(name)}" for name in shown]
    more = len(differences[best]) - len(shown)
    return "; ".join(parts) + (f"; and {more} more" if more else "")


def check_that(condition: str, expression: str, name: str, was: Any) -> Check:
    """A check of what an expression gives: `if a1 != 2: return MISS  # scale was 2`.

    `fg.load` has neither a capture to compare a call with nor the function to make one of: it says what it finds there.
    """
    return Check(condition, one_line(name), text_of(was), expression)


def text_of(value: Any) -> str:
    """A value in a line that is not long."""
    text = one_line(_module_text(value) if isinstance(value, torch.nn.Module) else _text(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def one_line(text: str) -> str:
    """A text that can stand in a comment: names may hold anything."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _module_text(module: torch.nn.Module) -> str:
    simple = {
        k: v for k, v in vars(module).items() if isinstance(v, (bool, int, float, str)) and k != "call_super_init"
    }
    hooks = sum(len(v) for k, v in vars(module).items() if k.endswith("_hooks") and isinstance(v, dict))
    return ", ".join([f"{k}={v}" for k, v in simple.items()] + ([f"{hooks} hooks"] if hooks else []))


def _text(value: Any, depth: int = 0) -> str:
    kind = type(value)
    if issubclass(kind, torch.Tensor):
        return f"a tensor {tuple(value.shape)}"
    if kind is GivenNumber:
        return f"any {value.kind.__name__}"
    if kind is GivenObject:
        held = ", ".join(f"{name}={_text(one, depth + 1)}" for name, one in zip(value.names, value.values, strict=True))
        return f"{value.kind.__name__}({held})" if depth < _DEEPEST else f"a {value.kind.__name__}"
    if issubclass(kind, (list, tuple, dict)) and depth >= _DEEPEST:
        return "..."
    if issubclass(kind, (list, tuple)):
        return f"{kind.__name__}({', '.join(_text(v, depth + 1) for v in value)})"
    if issubclass(kind, dict):
        return "{" + ", ".join(f"{k!r}: {_text(v, depth + 1)}" for k, v in value.items()) + "}"
    return repr(value) if issubclass(kind, (bool, int, float, str, type(None))) else f"a {kind.__name__}"
