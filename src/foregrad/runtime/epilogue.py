"""Epilogue: the effects of a program as straight-line Python on the user's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge, increment_version

from foregrad.core.attach_history import Attached
from foregrad.core.history import history_of
from foregrad.core.size import VARYING, sizes_in
from foregrad.core.source import Source
from foregrad.functionalize.effects import (
    AsFunctionView,
    Attach,
    Bump,
    Effects,
    GoOn,
    Hook,
    RedoView,
    RequireGrad,
    Reshape,
    Step,
    Write,
)
from foregrad.record.intercept import SET_DATA
from foregrad.record.ops import Alias
from foregrad.record.trace import Ref
from foregrad.torch_private.autograd import set_version, set_versions, version_of
from foregrad.torch_private.tensors import view_base

aten = torch.ops.aten


#: Methods that do nothing but call one op, in less time than the op itself takes to be called.
_METHODS = {
    aten.t.default: "t",
    aten.transpose.int: "transpose",
    aten.permute.default: "permute",
    aten.view.default: "view",
    aten.as_strided.default: "as_strided",
    aten.unsqueeze.default: "unsqueeze",
    aten.select.int: "select",
    aten.detach.default: "detach",
}


class Written(torch.autograd.Function):
    """Writes a value into a tensor, whose history is the value's from then on.

    `copy_` would do, but it also sends zeros back to what the tensor was before.
    """

    @staticmethod
    def forward(ctx: Any, target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        ctx.is_view = view_base(target) is not None
        target.data.copy_(value)
        ctx.mark_dirty(target)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # For a view autograd puts this into the gradient of the base, where it must be defined.
        return (torch.zeros_like(gradient) if ctx.is_view else None), gradient


class FunctionView(torch.autograd.Function):
    """A view made by a custom Function, which autograd lets nobody write to."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def emit_version_shifts(source: Source, effects: Effects, inputs: bool) -> None:
    """Bring the version counters to where the effects will leave them as eager does.

    This must happen after autograd has looked at the inputs and before views are re-made: the counter is also the stamp
    by which autograd knows that a view is stale. `_shift_versions` of the call sees to what is saved for backward.
    """
    shifts = {n: s for n, s in effects.version_shifts.items() if (n in effects.inputs) is inputs and s > 0}
    if shifts and not inputs:
        targets, versions = "".join(f"o{number}, " for number in shifts), "".join(f"{s}, " for s in shifts.values())
        source.line(f"{source.name('set_versions', set_versions)}(({targets}), ({versions}))")
    elif shifts:
        for shift in dict.fromkeys(shifts.values()):
            targets = "".join(f"o{number}, " for number, own in shifts.items() if own == shift)
            times = f" * {shift}" if shift > 1 else ""
            source.line(f"{source.name('increment_version', increment_version)}(({targets}){times})")


def emit_late_shifts(source: Source, effects: Effects) -> None:
    """Take back bumps that the effects make and eager does not."""
    for number, shift in effects.version_shifts.items():
        if shift < 0:
            now = f"{source.name('version_of', version_of)}(o{number}) - {-shift}"
            source.line(f"{source.name('set_version', set_version)}(o{number}, {now})")
    for number, version in effects.late_versions.items():
        source.line(f"{source.name('set_version', set_version)}(o{number}, {version})")


def after_donation(steps: tuple[Step, ...], places: dict[Alias, int], written: frozenset[int]) -> tuple[Step, ...]:
    """The steps that are left where the program has written some values itself: their version counters are not."""
    left: list[Step] = []
    for step in steps:
        if not isinstance(step, Write) or places[step.alias] not in written:
            left.append(step)
        elif step.how == "no_grad":
            last = left.pop() if left and isinstance(left[-1], Bump) else None
            left.append(Bump(step.target, (*(last.targets if isinstance(last, Bump) else ()), step.target)))
    return tuple(left)


def emit_steps(source: Source, steps: tuple[Step, ...], places: dict[Alias, int], grad_enabled: bool) -> bool:
    """Emit effects in order; returns the grad mode that they leave."""
    for step in steps:
        grad_enabled = _emit(source, step, places, grad_enabled)
    return grad_enabled


def _emit(source: Source, step: Step, places: dict[Alias, int], grad_enabled: bool) -> bool:
    target = f"o{step.target}"
    if isinstance(step, RedoView):
        grad_enabled = set_mode(source, grad_enabled, step.grad_enabled)
        _emit_stamp(source, step.stamp)
        if step.is_in_place and step.grad_enabled:
            # If its base was written, autograd takes it for a leaf until asked.
            source.line(f"{source.name('history_of', history_of)}({target})")
        given = [_arg(a, source) for a in step.args] + [f"{k}={_arg(v, source)}" for k, v in step.kwargs.items()]
        args = ", ".join(given)
        if step.func in _METHODS and not step.is_in_place:
            source.line(f"{target} = {given[0]}.{_METHODS[step.func]}({', '.join(given[1:])})")
        elif step.func is SET_DATA:
            source.line(f"{target}.data = o{step.args[1].object}")
        elif step.is_silent:
            source.line(f"version = {source.name('version_of', version_of)}({target})")
            source.line(f"{source.name('op', step.func)}({args})")
            source.line(f"{source.name('set_version', set_version)}({target}, version)")
        elif step.is_in_place:
            source.line(f"{source.name('op', step.func)}({args})")
        else:
            item = "" if step.item is None else f"[{step.item}]"
            source.line(f"{target} = {source.name('op', step.func)}({args}){item}")
    elif isinstance(step, Bump):
        bump = source.name("increment_version", increment_version)
        source.line(f"{bump}(({''.join(f'o{number}, ' for number in step.targets)}))")
    elif isinstance(step, Write):
        value = f"r{places[step.alias]}"
        target = look(target, step.alias.geometry, "view") if step.is_part else target
        if step.how == "data":
            source.line(f"{target}.data.copy_({value})")
        elif step.how == "grad":
            grad_enabled = set_mode(source, grad_enabled, True)
            source.line(f"{source.name('write', Written.apply)}({target}, {value})")
        else:  # a custom Function would take its accumulator away from a leaf: torch 2.13 ends the process in backward
            grad_enabled = set_mode(source, grad_enabled, step.how == "leaf")
            source.line(f"{target}.copy_({value})")
    elif isinstance(step, AsFunctionView):
        grad_enabled = set_mode(source, grad_enabled, True)
        source.line(f"{target} = {source.name('function_view', FunctionView.apply)}({target})")
    elif isinstance(step, Attach):
        grad_enabled = set_mode(source, grad_enabled, True)
        source.line(f"{target} = {source.name('attach', Attached.apply)}(r{places[step.alias]}, [{target}])")
        if step.version:
            source.line(f"{source.name('set_version', set_version)}({target}, {step.version})")
    elif isinstance(step, Reshape):
        grad_enabled = set_mode(source, grad_enabled, grad_enabled if step.how == "data" else step.grad_enabled)
        _emit_stamp(source, step.stamp)
        source.line(f"{target} = {look(f'o{step.source}', step.geometry, step.how)}")
    elif isinstance(step, Hook):
        source.line(f"{target}.register_hook({source.name('hook', _if_reached(step.hook))})")
    elif isinstance(step, GoOn):
        source.line(_going_on(source, step))
    elif isinstance(step, RequireGrad):
        source.line(f"{target}.requires_grad_({step.flag})")
    return grad_enabled


def emit_edges(source: Source, steps: tuple[Step, ...]) -> None:
    """Hold on to the histories with which inputs come, where a backward goes on through them: a write gives another."""
    for number in dict.fromkeys(number for step in steps if isinstance(step, GoOn) for number in step.inputs):
        source.line(f"e{number} = {source.name('get_gradient_edge', get_gradient_edge)}(o{number})")


def _going_on(source: Source, step: GoOn) -> str:
    edges = "".join(f"e{number}, " for number in step.inputs)
    gradients = "".join(f"o{number}, " for number in step.gradients)
    run = source.name("backward", torch.autograd.backward)
    return f"{run}(({edges}), ({gradients}), {step.retain_graph}, {step.create_graph})"


def _emit_stamp(source: Source, stamp: tuple[int, int] | None) -> None:
    if stamp is not None:
        source.line(f"{source.name('set_version', set_version)}(o{stamp[0]}, {stamp[1]})")


def over_memory(tensor: torch.Tensor, geometry: Any) -> torch.Tensor:
    """A new tensor over the memory of another, of any dtype; the two share a version counter."""
    size, stride, offset, dtype = geometry
    num_items = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
    return tensor.as_strided((num_items,), (1,), 0).view(dtype).as_strided(size, stride, offset).detach()


def geometry_text(source: Source, geometry: Any) -> str:
    """A geometry as generated code has it."""
    if not sizes_in(geometry):
        return source.name("geometry", geometry)
    size, stride, offset, dtype = geometry
    return f"({size}, {stride}, {offset!r}, {source.name('dtype', dtype)})"


def _if_reached(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that is left alone by a backward that does not reach its tensor."""
    return lambda gradient: None if gradient is None else hook(gradient)


def look(name: str, geometry: Any, how: str) -> str:
    """An expression for the memory of a tensor in another geometry."""
    size, stride, offset, _ = geometry
    if how == "data":
        return f"{name}.data.as_strided({size}, {stride}, {offset!r}).data"
    if how == "part":
        return f"{name}.as_strided((1, *{size}), (1, *{stride}), {offset!r}).unbind()[0]"
    strided = f"{name}.as_strided({size}, {stride}, {offset!r})"
    return strided + (".detach()" if how == "detach" else "")


def set_mode(source: Source, now: bool, wanted: bool) -> bool:
    if now is not wanted:
        source.line(f"{source.name('set_grad_enabled', torch.set_grad_enabled)}({wanted})")
    return wanted


def _arg(value: Any, source: Source) -> str:
    if isinstance(value, Ref):
        return f"o{value.object}"
    if isinstance(value, list):
        return "[" + ", ".join(_arg(v, source) for v in value) + "]"
    if isinstance(value, (bool, int, str, type(None), *VARYING)):
        return repr(value)
    return source.name("k", value)
