"""Wrapper subclasses at each call: inputs are checked and taken apart, results are made of their parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.source import Source
from foregrad.core.wrapper_autograd import Rewritten, Wrapped
from foregrad.core.wrapper_subclass import WrapperRecipe, has_parts
from foregrad.program.program import Calling
from foregrad.record.trace import OuterRef, ResultView, TracedWrapper, Wrap, Wrapping
from foregrad.runtime.epilogue import set_mode
from foregrad.torch_private.autograd import set_version, version_of

#: Tensors that wrap others, whose parts autograd has saved, and their versions then.
Standing = list[tuple[torch.Tensor, int]]


@dataclass(frozen=True)
class SameWrapper:
    """Whether a tensor wraps others as one did: its type, what it says of itself, its size, its place in autograd."""

    recipe: WrapperRecipe
    requires_grad: bool
    is_leaf: bool

    @staticmethod
    def of(outer: TracedWrapper) -> SameWrapper:
        return SameWrapper(outer.recipe, outer.required_grad, outer.is_leaf)

    def __call__(self, tensor: Any) -> bool:
        is_kind: bool = type(tensor) is self.recipe.kind
        if not is_kind or tensor.requires_grad is not self.requires_grad or tensor.is_leaf is not self.is_leaf:
            return False
        return has_parts(tensor) and WrapperRecipe.of(tensor) == self.recipe


def standing(calling: Calling, counters: Sequence[int]) -> list[OuterRef]:
    """Tensors that wrap others of which parts are saved: a write to them counts at them, not at the parts."""
    known, found = calling.effects.counters, []
    for outer in calling.wrapping.inputs:
        if any(known.get(part.alias.object) in counters for part in outer.parts):
            found.append(OuterRef("w", outer.index))
    for index, made in enumerate(calling.wrapping.made):
        if isinstance(made, Wrap) and any(known.get(number) in counters for number in made.objects):
            found.append(OuterRef("u", index))
    return found


def stand(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Something with the version counter of a tensor, and where it stands."""
    held = tensor.detach()
    vars(held).clear()  # not its memory
    return held, version_of(tensor)


def check_standing(standing: Standing) -> None:
    """Refuse, as autograd does, if a tensor was written since parts of it were saved."""
    for held, version in standing:
        if version_of(held) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: "
                f"[{type(held).__name__} {list(held.shape)}] is at version {version_of(held)}; expected version "
                f"{version} instead."
            )


def emit_wrapping(source: Source, wrapping: Wrapping, standing: list[str], grad_enabled: bool) -> bool:
    """Emit what makes the results that wrap others, and what is left to do to such inputs; returns the grad mode."""
    for index, made in enumerate(wrapping.made):
        if isinstance(made, Wrap):
            grad_enabled = _emit_wrap(source, f"u{index}", made, grad_enabled)
    for outer, history in wrapping.rewritten:
        grad_enabled = set_mode(source, grad_enabled, True)
        source.line(f"{source.name('rewrite', Rewritten.apply)}(w{outer.index}, {history})")
    rewritten = [outer for outer, _ in wrapping.rewritten]
    for outer in wrapping.inputs:
        shift = outer.num_writes - (outer in rewritten)
        if shift:
            now = f"{source.name('version_of', version_of)}(w{outer.index}) + {shift}"
            source.line(f"{source.name('set_version', set_version)}(w{outer.index}, {now})")
    for index, made in enumerate(wrapping.made):
        if isinstance(made, ResultView):
            grad_enabled = set_mode(source, grad_enabled, made.grad_enabled)
            args = [_arg(source, a) for a in made.args] + [f"{k}={_arg(source, v)}" for k, v in made.kwargs.items()]
            item = "" if made.item is None else f"[{made.item}]"
            source.line(f"u{index} = {source.name('look', made.func)}({', '.join(args)}){item}")
    for name in standing:
        source.line(f"standing.append({source.name('stand', stand)}({name}))")
    return grad_enabled


def _emit_wrap(source: Source, name: str, made: Wrap, grad_enabled: bool) -> bool:
    parts = "".join(f"o{number}, " for number in made.objects)
    recipe = source.name("recipe", made.recipe)
    if made.form is None:
        source.line(f"{name} = {recipe}.wrap(({parts}))")
    else:
        grad_enabled = set_mode(source, grad_enabled, True)
        form = source.name("form", made.form)
        source.line(f"{name} = {source.name('wrap', Wrapped.apply)}({form}, {recipe}, {parts})")
    if made.version:
        source.line(f"{source.name('set_version', set_version)}({name}, {made.version})")
    return grad_enabled


def _arg(source: Source, value: Any) -> str:
    if isinstance(value, OuterRef):
        return str(value)
    if type(value) in (list, tuple):
        inner = "".join(f"{_arg(source, v)}, " for v in value)
        return f"[{inner}]" if type(value) is list else f"({inner})"
    return source.constant(value)
