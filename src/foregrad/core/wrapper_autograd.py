"""Wrapper subclasses and autograd: between a wrapper and its parts, differentiably."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.spec import restrided
from foregrad.core.wrapper_subclass import GradientForm, WrapperRecipe, parts, refused_gradient
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, exclude_keys
from foregrad.torch_private.tensors import view_base


class Unwrapped(torch.autograd.Function):
    """The parts of a tensor, each with its history; the tensor's gradient wraps those of the parts."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, form: GradientForm) -> tuple[torch.Tensor, ...]:
        found = _plain(parts(tensor))
        ctx.form, ctx.others = form, [None if _has_gradient(part) else part for part in found]
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        found = [given if other is None else other for given, other in zip(gradients, ctx.others, strict=True)]
        values = [restrided(value, spec.stride) for value, spec in zip(found, ctx.form.specs, strict=True)]
        return Wrapped.apply(ctx.form, ctx.form.recipe, *values), None  # type: ignore[no-untyped-call]


class Wrapped(torch.autograd.Function):
    """A tensor around parts, with their history; a gradient of this form becomes gradients of the parts."""

    @staticmethod
    def forward(ctx: Any, form: GradientForm, recipe: WrapperRecipe, *values: torch.Tensor) -> torch.Tensor:
        found = _plain(values)
        ctx.form, ctx.others = form, [None if _has_gradient(part) else part for part in found]
        ctx.set_materialize_grads(False)
        return recipe.wrap(found)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is None:
            return (None, None, *(None for _ in ctx.others))
        found = Unwrapped.apply(ctx.form.accept(gradient), ctx.form)  # type: ignore[no-untyped-call]
        for part, other in zip(found, ctx.others, strict=True):
            if other is not None and not torch.equal(part, other):
                raise refused_gradient(gradient, ctx.form.name, f"{ctx.form.recipe} with other contents")
        return (None, None, *(part if other is None else None for part, other in zip(found, ctx.others, strict=True)))


@dataclass(frozen=True)
class Whole:
    """How a tensor is made of several values of a program; `form` is that of its gradient, if it can have one."""

    recipe: WrapperRecipe
    paths: tuple[str, ...]
    form: GradientForm | None

    def make(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        if self.form is None:
            return self.recipe.wrap(values)
        made: torch.Tensor = Wrapped.apply(self.form, self.recipe, *values)  # type: ignore[no-untyped-call]
        return made


def whole(values: Iterable[Any], wholes: tuple[Whole | None, ...]) -> list[Any]:
    """Tensors, some of which are made of several values; all of them are plain where nothing is said."""
    rest = iter(values)
    if not wholes:
        return list(rest)
    return [next(rest) if one is None else one.make([next(rest) for _ in one.paths]) for one in wholes]


class Rewritten(torch.autograd.Function):
    """A tensor in whose parts new contents were written: its history is that of these."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
        ctx.is_view = view_base(tensor) is not None
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        # For a view autograd puts this into the gradient of the base, where it must be defined.
        return (torch.zeros_like(gradient) if ctx.is_view else None), gradient


def _plain(values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The same memory, as tensors that are views of nothing."""
    with exclude_keys(BELOW_AUTOGRAD):
        return [value.detach() for value in values]


def _has_gradient(part: torch.Tensor) -> bool:
    return part.is_floating_point() or part.is_complex()
