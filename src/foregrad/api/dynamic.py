"""Dynamic: which dimensions of arguments are symbols in the next capture, and what a program assumes about them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from foregrad.api.options import Choice
from foregrad.record.lift.argument_objects import opened_arguments
from foregrad.record.lift.arguments import argument_names, bind_arguments, named_leaves
from foregrad.runtime.size_formulas import Dims, formulas
from foregrad.torch_private.pytree import tree_flatten

if TYPE_CHECKING:
    from foregrad.record.symbols.dimensions import Assumed, Dimensions, Sizes, Symbol

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

    @staticmethod
    def of(target: Any, args: Any, kwargs: Any) -> CallShapes:
        arguments = opened_arguments(bind_arguments(target, args, kwargs))
        names = argument_names(arguments)
        shapes: dict[str, Shape] = {}
        again: dict[str, str] = {}
        rest: list[Hashable] = [torch.is_grad_enabled(), str(tree_flatten(arguments)[1])]
        for name, leaf in named_leaves(arguments):
            if isinstance(leaf, torch.Tensor):
                first = names[id(leaf)]
                shapes[first] = tuple(leaf.shape)
                rest.append((first, leaf.dtype, leaf.dim(), leaf.requires_grad))
                if name != first:
                    again[name] = first
            elif type(leaf) in (int, float):  # numbers vary by themselves
                rest.append((type(leaf), ...))
            else:
                rest.append((type(leaf), leaf) if isinstance(leaf, _PLAIN) else (type(leaf), id(leaf)))
        return CallShapes(shapes, tuple(rest), again)


def _varying(choice: Choice, look: CallShapes, before: list[CallShapes]) -> Dimensions:
    """The dimensions that are to be symbols in a capture of this call; sizes 0 and 1 are never."""
    if choice is False:
        return {}
    if isinstance(choice, Mapping):
        return _named(choice, look.shapes, look.again)
    if choice is True:
        found = {name: tuple(range(len(shape))) for name, shape in look.shapes.items()}
    else:
        alike = [one.shapes for one in before if one.rest == look.rest]
        found = {
            name: tuple(dim for dim, size in enumerate(shape) if any(one[name][dim] != size for one in alike))
            for name, shape in look.shapes.items()
        }
    return _varied(found, look.shapes)


def _named(choice: Mapping[str, tuple[int, ...]], shapes: dict[str, Shape], again: dict[str, str]) -> Dimensions:
    dims_of: dict[str, tuple[int, ...]] = {}
    for name, dims in choice.items():
        first = again.get(name, name)
        dims_of[first] = (*dims_of.get(first, ()), *dims)
    for name, dims in dims_of.items():
        if name not in shapes:
            raise ValueError(f"dynamic names {name!r}; the tensors of this call are {', '.join(shapes) or 'none'}")
        rank = len(shapes[name])
        wrong = [dim for dim in dims if not -rank <= dim < rank]
        if wrong:
            raise ValueError(f"dynamic names dimension {wrong[0]} of {name!r}, which has {rank}")
    found = {name: tuple(dim % len(shapes[name]) for dim in of) for name, of in dims_of.items() if shapes[name]}
    return _varied(found, shapes)


def _varied(found: Dimensions, shapes: dict[str, Shape]) -> Dimensions:
    """Without the sizes that behave otherwise, 0 and 1."""
    kept = {name: tuple(dim for dim in dims if shapes[name][dim] > 1) for name, dims in found.items()}
    return {name: dims for name, dims in kept.items() if dims}


@dataclass(frozen=True)
class Conditions:
    """What the program of a capture with sizes that vary holds for."""

    symbols: tuple[Symbol, ...]
    assumed: tuple[Assumed, ...]
    checks: tuple[Callable[[Dims], Any], ...]

    @property
    def dims(self) -> Dimensions:
        """Which dimensions vary, by the name of the argument."""
        names = dict.fromkeys(symbol.name for symbol in self.symbols)
        return {name: tuple(one.dim for one in self.symbols if one.name == name) for name in names}

    @staticmethod
    def of(sizes: Sizes) -> Conditions:
        assumed = tuple(sizes.assumed())
        return Conditions(tuple(sizes.symbols), assumed, tuple(formulas(sizes, one.code) for one in assumed))

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
