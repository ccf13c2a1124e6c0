"""Size: a size that varies between calls, as an expression of the sizes of arguments.

It stands in shapes and strides where a plain integer stands otherwise. Two sizes are equal if they are the same
expression by all that was assumed so far, whatever their values. Every other question, such as which of two is larger,
is answered for the call that is being captured, and the answer becomes a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch


class Size:
    """An integer expression over symbols; `space` knows the symbols, and what was assumed about them.

    `repr` is Python that computes it (`4*dim0`), `str` names dimensions (`4*tokens.1`).
    """

    __slots__ = ("expression", "space", "value")

    def __init__(self, expression: Any, value: int, space: Any) -> None:
        self.expression = expression
        self.value = value  # in the call that was captured
        self.space = space

    def symbol(self) -> torch.SymInt:
        """What torch computes shapes with."""
        found: torch.SymInt = self.space.symint(self.expression)
        return found

    @property
    def symbols(self) -> tuple[Size, ...]:
        """The sizes of single dimensions that it is computed from, in the order of their names."""
        found: tuple[Size, ...] = self.space.symbols_of(self.expression)
        return found

    @property
    def mode(self) -> Any:
        """In which tensors without data have sizes like this one."""
        return self.space.mode

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        return value_of(other) == self.value and bool(self.space.are_equal(self, other))

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return str(self.space.code(self.expression))

    def __str__(self) -> str:
        return str(self.space.text(self.expression))

    def __index__(self) -> int:
        return operator.index(self.symbol())  # from here on the program holds for this value only

    def __int__(self) -> int:
        return operator.index(self)

    def __bool__(self) -> bool:
        return bool(self.symbol())

    def __copy__(self) -> Size:
        return self

    def __deepcopy__(self, memo: Any) -> Size:
        return self


class Formula:
    """A number that is computed from sizes and is none itself, such as a float; `repr` and `str` as above."""

    __slots__ = ("code", "text", "value")

    def __init__(self, code: str, text: str, value: Any) -> None:
        self.code = code
        self.text = text
        self.value = value  # in the call that was captured

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Formula) and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.code)

    def __repr__(self) -> str:
        return self.code

    def __str__(self) -> str:
        return self.text


#: What varies between calls.
VARYING = (Size, Formula)


def _computed(function: Callable[..., Any], *, is_reflected: bool = False) -> Any:
    def method(self: Size, other: Any) -> Any:
        if not isinstance(other, (int, Size)):
            return NotImplemented
        mine, others = self.symbol(), other.symbol() if isinstance(other, Size) else other
        found = function(others, mine) if is_reflected else function(mine, others)
        return bool(found) if isinstance(found, torch.SymBool) else frozen(found)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod"):
    setattr(Size, f"__{_name}__", _computed(getattr(operator, _name)))
    setattr(Size, f"__r{_name}__", _computed(getattr(operator, _name), is_reflected=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Size, f"__{_name}__", _computed(getattr(operator, _name)))


def frozen(value: Any) -> Any:
    """A size as torch gives it, as an integer or a `Size`."""
    return value if type(value) in (int, Size) else value.node.shape_env.shapes.size(value)


def frozen_shape(values: Iterable[Any]) -> tuple[Any, ...]:
    """The same for the sizes of a tensor, none of which is 0 from here on: an empty one has a program of its own."""
    return tuple([value if type(value) is int else value.node.shape_env.shapes.positive(value) for value in values])


class Shape(tuple[Any, ...]):
    """A `torch.Size` in which sizes vary, among the results of a function."""

    __slots__ = ()


def frozen_all(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([frozen(value) for value in values])


def value_of(size: Any) -> int:
    """What a size is in the call that was captured; nothing is assumed by looking."""
    return size.value if isinstance(size, Size) else int(size)


def thawed(value: Any) -> Any:
    """Arguments of an op with torch's symbols for sizes."""
    if isinstance(value, Size):
        return value.symbol()
    if isinstance(value, (list, tuple)):
        return type(value)(thawed(v) for v in value)
    return value


def sizes_in(value: Any) -> list[Size | Formula]:
    """Everything that varies in nested lists, tuples and dicts, in order."""
    if isinstance(value, VARYING):
        return [value]
    if isinstance(value, (list, tuple)):
        return [s for v in value for s in sizes_in(v)]
    if isinstance(value, dict):
        return [s for v in value.values() for s in sizes_in(v)]
    return []


def replaced(value: Any, by: Callable[[Any], Any]) -> Any:
    """A value with something else for each size in it that varies."""
    if isinstance(value, VARYING):
        return by(value)
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(v, by) for v in value)
    return {k: replaced(v, by) for k, v in value.items()} if isinstance(value, dict) else value
