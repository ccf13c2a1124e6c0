"""Formulas: values in which sizes vary, computed from the dimensions of a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foregrad.core.source import Source

if TYPE_CHECKING:
    from foregrad.record.symbols.dimensions import Sizes
    from foregrad.record.symbols.numbers import Expression

Dims = tuple[int, ...]  # the sizes of one call, in the order of their symbols


def formulas(sizes: Sizes | None, text: str, numbers: Sequence[Expression] = ()) -> Callable[[Dims], tuple[Any, ...]]:
    """A function of the dimensions of a call, and of numbers that it carries, which gives what a text says."""
    source = Source(has_sizes=True)
    with source.block("def values(dims):"):
        source.line(f"{dims_of(sizes, numbers)}*_, = dims")
        source.line(f"return {text}")
    return source.load("values")


def dims_of(sizes: Sizes | None, numbers: Sequence[Expression] = ()) -> str:
    """The names of the dimensions that vary, and of numbers, as generated code lists them; nothing where none do."""
    names = [symbol.code for symbol in sizes.symbols] if sizes is not None else []
    return "".join(f"{name}, " for name in (*names, *map(repr, numbers)))
