"""Formulas: values in which sizes vary, computed from the dimensions of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foregrad.core.source import Source

if TYPE_CHECKING:
    from foregrad.record.symbols.dimensions import Sizes

Dims = tuple[int, ...]  # the sizes of one call, in the order of their symbols


def formulas(sizes: Sizes, text: str) -> Callable[[Dims], tuple[Any, ...]]:
    """A function of the dimensions of a call, which gives what a text says."""
    source = Source(has_sizes=True)
    with source.block("def values(dims):"):
        source.line(f"{dims_of(sizes)}= dims")
        source.line(f"return {text}")
    return source.load("values")


def dims_of(sizes: Sizes | None) -> str:
    """The names of the dimensions that vary, as generated code lists them; nothing where none do."""
    return "".join(f"{symbol.code}, " for symbol in sizes.symbols) if sizes is not None else ""
