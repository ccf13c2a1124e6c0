"""Dynamic: which dimensions of arguments are symbols in the next capture, and what a program assumes about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from foregrad.api.options import Choice
from foregrad.record.lift.argument_objects import opened_arguments
from foregrad.record.lift.arguments import argument_names, bind_arguments, named_leaves
from foregrad.record.symbols.varying import Dimensions, Varying
from foregrad.runtime.size_formulas import Dims, formulas
from foregrad.torch_private.marks import NOTHING, Marked, marks_of
from foregrad.torch_private.pytree import tree_flatten

if TYPE_CHECKING:
    from foregrad.record.symbols.dimensions import Assumed, Sizes, Symbol

Shape = tuple[int, ...]
_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


@dataclass(frozen=True)
class SizePlan:
    """How to capture a call: which of its dimensions are symbols, and the condition that it failed, if there is one."""

    look: CallShapes
    dims: Dimensions
    reason: str | None = None


class Dynamic:
    """What one compiled function knows about the sizes of its arguments."""

    def __init__(self, choice: Choice) -> None:
        self._choice = choice
        self._looks: list[CallShapes] = []
        self._conditions: list[tuple[CallShapes, Conditions]] = []
        self._fixed: dict[Hashable, str] = {}  # calls whose sizes cannot vary, and why

    def plan(self, target: Any, args: Any, kwargs: Any) -> SizePlan:
        look = CallShapes.of(target, args, kwargs)
        failed = [why for one, known in self._conditions if one.rest == look.rest for why in known.failing(look)]
        dims = {} if look.rest in self._fixed else _varying(self._choice, look, self._looks)
        return SizePlan(look, dims, failed[-1] if failed else None)

    def add(self, plan: SizePlan, conditions: Conditions | KeptConditions | None = None, refusal: str = "") -> None:
        """Take note of a capture; `refusal` is why no size varies in it, though some should."""
        self._looks.append(plan.look)
        if isinstance(conditions, Conditions):
            self._conditions.append((plan.look, conditions))
        if refusal:
            self._give_up(plan, refusal)

    def _give_up(self, plan: SizePlan, refusal: str) -> None:
        """Such calls are captured for their sizes alone from now on."""
        self._fixed[plan.look.rest] = f"its sizes cannot vary: {refusal.splitlines()[0]}"
        if isinstance(self._choice, Mapping):
            warnings.warn(
                f"{', '.join(plan.dims)} cannot vary as dynamic= says, so each size is captured by itself: {refusal}",
                stacklevel=6,
            )

    def why_fixed(self, plan: SizePlan) -> str | None:
        return self._fixed.get(plan.look.rest)


@dataclass(frozen=True)
class CallShapes:
    """The arguments of a call: the shapes of tensors by name, and everything else that a capture may depend on."""

    shapes: dict[str, Shape]
    rest: Hashable
    again: dict[str, str] = field(default_factory=dict)  # places of tensors given before, and the names of these
    marks: dict[str, Marked] = field(default_factory=dict)  # what is said on the tensors themselves

    @staticmethod
    def of(target: Any, args: Any, kwargs: Any) -> CallShapes:
        arguments = opened_arguments(bind_arguments(target, args, kwargs))
        names = argument_names(arguments)
        shapes: dict[str, Shape] = {}
        again: dict[str, str] = {}
        marks: dict[str, Marked] = {}
        rest: list[Hashable] = [torch.is_grad_enabled(), str(tree_flatten(arguments)[1])]
        for name, leaf in named_leaves(arguments):
            if isinstance(leaf, torch.Tensor):
                first = names[id(leaf)]
                shapes[first] = tuple(leaf.shape)
                marks[first] = marks_of(leaf)
                rest.append((first, leaf.dtype, leaf.dim(), leaf.requires_grad))
                if name != first:
                    again[name] = first
            elif type(leaf) in (int, float):  # numbers vary by themselves
                rest.append((type(leaf), ...))
            else:
                rest.append((type(leaf), leaf) if isinstance(leaf, _PLAIN) else (type(leaf), id(leaf)))
        return CallShapes(shapes, tuple(rest), again, marks)


def _varying(choice: Choice, look: CallShapes, before: list[CallShapes]) -> Dimensions:
    """The dimensions that are to be symbols in a capture of this call; sizes 0 and 1 are never."""
    if choice is False:
        return {}
    if isinstance(choice, Mapping):
        return _marked(_named(choice, look.shapes, look.again), look)
    if choice is True:
        return _marked({name: tuple(map(Varying, range(len(shape)))) for name, shape in look.shapes.items()}, look)
    alike = [one.shapes for one in before if one.rest == look.rest]
    seen = {
        (name, dim): tuple(shapes[name][dim] for shapes in (*alike, look.shapes))
        for name, shape in look.shapes.items()
        for dim in range(len(shape))
    }
    first: dict[tuple[int, ...], tuple[str, int]] = {}
    found: dict[str, list[Varying]] = {}
    for (name, dim), sizes in seen.items():
        if len(set(sizes)) > 1:
            other = first.setdefault(sizes, (name, dim))
            found.setdefault(name, []).append(Varying(dim, same_as=other if other != (name, dim) else None))
    return _marked({name: tuple(dims) for name, dims in found.items()}, look)


def _marked(found: Dimensions, look: CallShapes) -> Dimensions:
    """With what is marked on the tensors themselves, and without the sizes that are not allowed."""
    kept: Dimensions = {}
    for name, shape in look.shapes.items():
        marked = look.marks.get(name, NOTHING)
        dims = {one.dim: one for one in found.get(name, ()) if one.dim not in marked.fixed}
        dims |= {
            dim: Varying(dim, max(2, least or 2), most)
            for dim, least, most in marked.varying
            if dim not in marked.fixed
        }
        allowed = tuple(one for _, one in sorted(dims.items()) if one.allows(shape[one.dim]))
        if allowed:
            kept[name] = allowed
    return kept


def _named(choice: Dimensions, shapes: dict[str, Shape], again: dict[str, str]) -> Dimensions:
    dims_of: Dimensions = {}
    for name, dims in choice.items():
        first = again.get(name, name)
        dims_of[first] = (*dims_of.get(first, ()), *dims)
    for name, dims in dims_of.items():
        if name not in shapes:
            raise ValueError(f"dynamic names {name!r}; the tensors of this call are {', '.join(shapes) or 'none'}")
        rank = len(shapes[name])
        wrong = [one.dim for one in dims if not -rank <= one.dim < rank]
        if wrong:
            raise ValueError(f"dynamic names dimension {wrong[0]} of {name!r}, which has {rank}")
    return {
        name: tuple(replace(one, dim=one.dim % len(shapes[name])) for one in of)
        for name, of in dims_of.items()
        if shapes[name]
    }


@dataclass(frozen=True)
class Conditions:
    """What the program of a capture with sizes that vary holds for."""

    symbols: tuple[Symbol, ...]
    assumed: tuple[Assumed, ...]
    checks: tuple[Callable[[Dims], Any], ...]
    dims: Dimensions  # which dimensions vary, by the name of the argument

    @staticmethod
    def of(sizes: Sizes) -> Conditions:
        assumed = tuple(sizes.assumed())
        return Conditions(
            tuple(sizes.symbols), assumed, tuple(formulas(sizes, one.code) for one in assumed), sizes.wanted
        )

    def failing(self, look: CallShapes) -> list[str]:
        """The conditions that a call does not meet, in words."""
        dims = tuple(look.shapes[symbol.name][symbol.dim] for symbol in self.symbols)
        named = list(zip(self.symbols, dims, strict=True))
        small = [f"{symbol.words} > 1 does not hold: it is {size}" for symbol, size in named if size < 2]
        if small:
            return small
        failed = [one for one, check in zip(self.assumed, self.checks, strict=True) if not _holds(check, dims)]
        return [f"{one.text} does not hold: {self._given(one, named)} ({one.line})" for one in failed]

    def _given(self, one: Assumed, named: list[tuple[Symbol, int]]) -> str:
        return ", ".join(f"{symbol.words} is {size}" for symbol, size in named if symbol.words in one.text)

    def lines(self) -> list[str]:
        """What varies, and under which conditions."""
        names = ", ".join(symbol.words for symbol in self.symbols)
        return [f"{names} may vary", *(f"as long as {one.text} ({one.line})" for one in self.assumed)]


@dataclass(frozen=True)
class KeptConditions:
    """The same of a capture that was found in a cache, in words, and what varies in it."""

    said: tuple[str, ...]
    dims: Dimensions

    def lines(self) -> list[str]:
        return list(self.said)


def of_any_size(args: Any, kwargs: Any) -> frozenset[int]:
    """The ids of tensors among the arguments of which sizes may vary in a program that is looked for in a cache."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if type(leaf) is torch.Tensor]
    plain = [t for t in tensors if t.layout is torch.strided and t.device.type == "cpu" and t.is_contiguous()]
    return frozenset(id(one) for one in plain if any(size > 1 for size in one.shape))


def _holds(check: Callable[[Dims], Any], dims: Dims) -> bool:
    try:
        return bool(check(dims))
    except ZeroDivisionError:
        return False
