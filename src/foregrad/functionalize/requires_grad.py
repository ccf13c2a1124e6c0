"""requires_grad: where effects set the flag of a tensor, and hooks on inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from foregrad.core.errors import CaptureError
from foregrad.functionalize.effect_order import START, Placed, Position, Turn
from foregrad.functionalize.effects import Hook, RedoView, RequireGrad, Step
from foregrad.record.ops import Op
from foregrad.record.trace import Trace, TracedInput


@dataclass(frozen=True)
class Flags:
    before: tuple[Step, ...]  # those that the program itself relies on
    steps: tuple[Placed, ...]


def plan_flags(
    trace: Trace,
    made: set[int],
    made_at: Callable[[int], int],
    steps: Sequence[Placed],
) -> Flags:
    """Changes of `requires_grad` of inputs, and of the objects that the call makes or returns."""
    inputs = {lifted.alias.object: lifted for lifted in trace.inputs}
    before: list[Step] = []
    placed: list[Placed] = []
    asked: dict[int, list[Placed]] = {}
    for number, place, flag in trace.flags:
        asked.setdefault(number, []).append((Position(place, Turn.FLAG), RequireGrad(number, flag)))
    for number, lifted in inputs.items():
        wishes = asked.get(number, [])
        if not lifted.is_told:
            placed += wishes
            continue
        _refuse_other_shape(lifted, trace.renames.get(number, ()))
        before.append(RequireGrad(number, True))
        last = max((at for at, _ in wishes), default=START)
        family = {number, *(other for other, view in inputs.items() if view.base is lifted)}
        if any(_looks_at(step, family) and at < last for at, step in steps):
            placed += [(START, RequireGrad(number, False)), *wishes]
    leaves = (made - inputs.keys()) & trace.leaves
    for number, at, flag in trace.flags:
        if number in leaves:
            placed.append((Position(at, Turn.FLAG), RequireGrad(number, flag)))
    for number in sorted(leaves - asked.keys()):
        if number in trace.flagged:
            placed.append((Position(made_at(number), Turn.FLAG), RequireGrad(number, True)))
    before += [Hook(number, hook) for number, hook in trace.hooks]
    return Flags(tuple(before), tuple(placed))


def _refuse_other_shape(lifted: TracedInput, changes: Sequence[Op]) -> None:
    """The gradient of an input arrives at the tensor that the call is given, before the function changes its shape."""
    for op in changes:
        if (op.outputs.size, op.outputs.dtype) != (lifted.alias.size, lifted.alias.dtype):
            raise CaptureError(
                f"the function gives an input {lifted.spec} another shape, and tells it to require a gradient.\n"
                f"  at {op.origin}\nDo either of it outside."
            )


def _looks_at(step: Step, family: set[int]) -> bool:
    """Whether a step makes a view of one of these objects, an input and its views, or changes its geometry: both are
    otherwise once the input requires a gradient."""
    first = step.args[0] if isinstance(step, RedoView) and step.args else None
    return getattr(first, "object", None) in family
