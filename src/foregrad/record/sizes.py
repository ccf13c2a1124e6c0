"""Sizes: dimensions of arguments that vary between calls, as symbols, and what a recording assumes about them.

Ghosts are fake tensors then, since these have symbols for sizes: torch's own shape functions compute with them. Where a
shape function or Python needs to know (`if x.shape[0] > 8`), the answer is a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch


#: Which dimensions vary, by the name of the argument.
Dimensions = dict[str, tuple[int, ...]]


@dataclass(eq=False, slots=True)
class Symbol:
    """A dimension that varies: `dim1` is the size of a dimension of an argument."""

    code: str
    real: torch.Tensor | None  # the argument, until the capture is finished
    dim: int
    text: str  # `tokens.1`


@dataclass(frozen=True, slots=True)
class Assumed:
    """A condition on sizes: as Python, in the user's words, and the line that made it necessary."""

    code: str
    text: str
    line: str


class Sizes:
    """The symbols of one recording."""

    def __init__(self, wanted: Dimensions) -> None:
        from foregrad.substrate_shapes import Shapes

        self._wanted = wanted
        self._lines: list[str] = []
        self.here: Callable[[], str] = lambda: ""  # which line is running
        self.shapes = Shapes(lambda: self._lines.append(self.here().strip()))
        self.symbols: list[Symbol] = []
        self.attributes: frozenset[str] = frozenset()  # that every ghost has

    @property
    def mode(self) -> AbstractContextManager[Any]:
        """In which tensors without data have symbols for sizes."""
        return self.shapes.mode

    def ghost(self, real: torch.Tensor, name: str) -> torch.Tensor:
        """The ghost of an argument, with symbols for the dimensions that vary.

        A stride that follows from the sizes of other dimensions goes on doing so; others stay what they are.
        """
        size: list[Any] = list(real.size())
        for dim in sorted({dim % len(size) for dim in self._wanted.get(name, ()) if size}):
            if size[dim] > 1:
                code, text = f"dim{len(self.symbols)}", f"{name}.{dim}"
                self.symbols.append(Symbol(code, real, dim, text))
                size[dim] = self.shapes.new_symbol(size[dim], code, text)
        stride, offset = _strides(tuple(real.size()), tuple(real.stride()), size), real.storage_offset()
        extent = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) if 0 not in size else 0
        memory = torch.empty((offset + extent) * real.dtype.itemsize, dtype=torch.uint8, device=real.device)
        ghost = torch.empty(0, dtype=real.dtype, device=real.device)
        self.attributes |= vars(ghost).keys()
        return ghost.set_(memory.untyped_storage(), offset, size, stride)

    def assumed(self, first: int = 0) -> list[Assumed]:
        """What the recording relies on, from the guard with this number on."""
        found = zip(self.shapes.assumed()[first:], self._lines[first:], strict=True)
        return [Assumed(self.shapes.code(e), self.shapes.text(e), line) for e, line in found]

    @property
    def num_assumed(self) -> int:
        return len(self._lines)

    def release(self) -> None:
        """Let go of every real tensor."""
        for symbol in self.symbols:
            symbol.real = None


def fakes(sizes: Sizes | None) -> AbstractContextManager[Any]:
    """Where ghosts are made: plain tensors, or such with symbols."""
    return nullcontext() if sizes is None else sizes.mode


def _strides(sizes: tuple[int, ...], strides: tuple[int, ...], symbols: list[Any]) -> tuple[Any, ...]:
    """The strides of a tensor, in symbols where they are products of sizes."""
    found: list[Any] = list(strides)
    expected: Any = 1
    plain = 1
    for dim in sorted(range(len(sizes)), key=lambda d: (strides[d], -d)):
        if strides[dim] == plain:
            found[dim] = expected
            plain, expected = plain * sizes[dim], expected * symbols[dim]
    return tuple(found)
