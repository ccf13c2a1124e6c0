"""Dimensions of arguments that vary between calls, as symbols, and what a recording assumes about them.

Ghosts are fake tensors then, since these have symbols for sizes: torch's own shape functions compute with them. Where a
shape function or Python needs to know (`if x.shape[0] > 8`), the answer is a guard.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.size import Formula, Shape, frozen, frozen_all
from foregrad.record.symbols.sizes import Formulas, formula_of
from foregrad.record.symbols.varying import AS_SAID, AS_SEEN, Dimensions, Varying
from foregrad.torch_private.fake_tensors import quiet_torch


@dataclass(frozen=True, eq=False, slots=True)
class Symbol:
    """A dimension that varies: `dim1` is the size of a dimension of an argument."""

    code: str
    name: str  # of the argument
    dim: int
    tensor: weakref.ref[torch.Tensor]  # the argument itself

    @property
    def words(self) -> str:
        """As the user would write it: `tokens.shape[1]`."""
        return f"{self.name}.shape[{self.dim}]"


@dataclass(frozen=True, slots=True)
class Assumed:
    """A condition on sizes: as Python, in the user's words, and the line that made it necessary."""

    code: str
    text: str
    line: str


#: Below it sizes behave otherwise.
SMALLEST = 2


class Sizes:
    """The symbols of one recording."""

    def __init__(self, wanted: Dimensions) -> None:
        from foregrad.torch_private.symbolic_shapes import Shapes

        self.wanted = wanted
        self._found: list[str | Assumed] = []  # conditions of our own, and for each of torch's its line
        self.here: Callable[[], str] = lambda: ""  # which line is running
        self.shapes = Shapes(lambda: self._found.append(self.here().strip()), Formulas(self.assume))
        self.symbols: list[Symbol] = []
        self._first: dict[tuple[str, int], Any] = {}  # the symbol of a dimension, and of those that are the same
        with self.mode:
            self.attributes = frozenset(vars(torch.empty(0)))  # that every ghost has
        self.num_checked = -1  # how many assumptions each call checks; -1 until the capture is finished

    @property
    def mode(self) -> AbstractContextManager[Any]:
        """In which tensors without data have symbols for sizes."""
        return self.shapes.mode

    def ghost(self, real: torch.Tensor, name: str) -> torch.Tensor:
        """The ghost of an argument, with symbols for the dimensions that vary.

        A stride that follows from the sizes of other dimensions goes on doing so; others stay what they are.
        """
        size: list[Any] = list(real.size())
        for one in sorted(self.wanted.get(name, ()), key=lambda one: one.dim):
            if one.allows(size[one.dim]):
                size[one.dim] = self._symbol(real, name, one)
        stride, offset = symbolic_strides(real, size), real.storage_offset()
        extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
        memory = torch.empty((offset + extent) * real.dtype.itemsize, dtype=torch.uint8, device=real.device)
        ghost = torch.empty(0, dtype=real.dtype, device=real.device)
        return ghost.set_(memory.untyped_storage(), offset, size, stride)

    def _symbol(self, real: torch.Tensor, name: str, one: Varying) -> Any:
        """The symbol for a dimension, within its bounds; equal to that of another which always had the same size."""
        new = Symbol(f"dim{len(self.symbols)}", name, one.dim, weakref.ref(real))
        self.symbols.append(new)
        value, text = real.size(one.dim), f"{name}.{one.dim}"
        made = self.shapes.new_symbol(value, new.code, text, new.words, one.least, one.most)
        if one.least > SMALLEST:
            self._found.append(Assumed(f"({one.least} <= {new.code})", f"{one.least} <= {new.words}", AS_SAID))
        if one.most is not None:
            self._found.append(Assumed(f"({new.code} <= {one.most})", f"{new.words} <= {one.most}", AS_SAID))
        with self.because(AS_SAID):
            assert one.multiple == 1 or made % one.multiple == 0  # a guard
        first = self._first.setdefault(one.same_as or (name, one.dim), made)
        with self.because(AS_SEEN):
            assert first is made or first == made  # the same
        return made

    def encode(self, value: Any, key: list[Any]) -> Any:
        """The recorded form of a symbol among the arguments of an op; adds what it looks like to the key."""
        if isinstance(value, torch.SymBool):
            key.append(bool(value))
            return key[-1]
        found = frozen(value) if isinstance(value, torch.SymInt) else formula_of(value)
        key.append(float if isinstance(found, Formula) else found)
        return found

    def varies(self, value: Any) -> bool:
        """Whether a result of the function is a number or a shape that varies."""
        return isinstance(value, (torch.SymInt, torch.SymFloat)) or (
            type(value) is torch.Size and any(isinstance(n, torch.SymInt) for n in value)
        )

    def plain(self, value: Any) -> Any:
        """Such a result as it is recorded."""
        if type(value) is torch.Size:
            return Shape(frozen_all(value))
        return frozen(value) if isinstance(value, torch.SymInt) else formula_of(value)

    @property
    def is_finished(self) -> bool:
        return self.num_checked >= 0

    def assume(self, code: str, text: str) -> None:
        """Let the program hold only where a condition does."""
        self._found.append(Assumed(code, text, self.here().strip()))

    @property
    def num_assumed(self) -> int:
        return len(self._found)

    def assumed(self, first: int = 0, end: int | None = None) -> list[Assumed]:
        """What the recording relies on, from the condition with one number to that with another."""
        conditions = iter(self.shapes.assumed())
        found = [one if isinstance(one, Assumed) else (next(conditions), one) for one in self._found][first:end]
        return list(
            dict.fromkeys(
                one
                if isinstance(one, Assumed)
                else Assumed(self.shapes.code(one[0]), self.shapes.words(one[0]), one[1])
                for one in found
            )
        )

    def newly_checked(self) -> list[Assumed]:
        """All that is relied on so far and no call checks yet; each call does from now on."""
        before, self.num_checked = max(self.num_checked, 0), len(self._found)
        known = self.assumed(0, before)
        return [one for one in self.assumed(before) if one not in known]

    @contextmanager
    def because(self, reason: str) -> Iterator[None]:
        """While a reason is given for what is assumed, in the place of a line."""
        here, self.here = self.here, lambda: reason
        try:
            yield
        finally:
            self.here = here

    def refuse_late(self) -> None:
        """Refuse what was assumed after the checks of a call were written."""
        if len(self._found) != self.num_checked:
            late = self.assumed(self.num_checked)[0]
            raise CaptureError(f"{late.text} is assumed too late to be checked at each call.\n  {late.line}")


def fakes(sizes: Sizes | None) -> AbstractContextManager[Any]:
    """Where ghosts are made: plain tensors, or such with symbols."""
    return nullcontext() if sizes is None else _quietly(sizes)


@contextmanager
def _quietly(sizes: Sizes) -> Iterator[None]:
    """What torch cannot do with symbols is done without, so it is nothing to log."""
    with quiet_torch(), sizes.mode:
        yield


def symbolic_strides(tensor: torch.Tensor, symbols: Sequence[Any]) -> tuple[Any, ...]:
    """The strides of a tensor, in symbols where they are products of its sizes."""
    sizes, strides = tensor.size(), tensor.stride()
    found: list[Any] = list(strides)
    expected: Any = 1
    plain = 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        if strides[dim] == plain:
            found[dim] = expected
            plain, expected = plain * sizes[dim], expected * symbols[dim]
    return tuple(found)
