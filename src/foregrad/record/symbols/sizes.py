"""Symbolic sizes, as the user's code sees them: they behave as Python ints.

Arithmetic of integers gives sizes again, which torch takes for shapes. A float (`x.shape[1] ** -0.5`) is a formula that
each call evaluates in Python, as eager does. What Python needs to know becomes a guard.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.size import Formula, Size, frozen
from foregrad.record.symbols.node import Symbolic
from foregrad.record.symbols.numbers import INFIX, Float, infix

#: Numbers of torch's that stand for others.
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)

#: How Python asks for sizes.
SHAPES = {
    torch.Tensor.shape.__get__,  # type: ignore[attr-defined]
    torch.Tensor.size,
    torch.Tensor.stride,
    torch.Tensor.numel,
    torch.Tensor.nelement,
    torch.Tensor.storage_offset,
    torch.numel,
}

_EXACT = {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod}


class FormulaNode(Symbolic):
    """The object behind a `torch.SymFloat` that is computed from sizes."""

    __slots__ = ("formula", "numbers")

    def __init__(self, formula: Formula, numbers: Formulas) -> None:
        self.formula = formula
        self.numbers = numbers

    def known(self) -> Any:
        """The value itself: from here on the program holds for this value only."""
        self.numbers.assume(f"({self.formula!r} == {self.formula.value!r})", f"{self.formula} == {self.formula.value}")
        return self.formula.value

    def has_hint(self) -> bool:
        return True

    def guard_float(self, file: str, line: int) -> float:
        return float(self.known())

    def wrap_float(self, value: float) -> FormulaNode:
        return FormulaNode(Formula(repr(value), repr(value), value), self.numbers)

    def wrap_int(self, value: int) -> FormulaNode:
        return self.wrap_float(float(value))


class Formulas:
    """Functions of sizes; `assume` takes a condition as code and in words."""

    def __init__(self, assume: Callable[[str, str], None]) -> None:
        self.assume = assume

    def compute(self, function: Callable[..., Any], args: tuple[Any, ...], text: str = "") -> Any:
        """What a function of numbers gives: a float, or a plain integer or truth that becomes a guard."""
        given = [_plain(a) for a in args]
        value = function(*[a.value if isinstance(a, (Size, Formula)) else a for a in given])
        code, words = _applied(function, [repr(a) for a in given]), _applied(function, [str(a) for a in given])
        if type(value) is float:
            return Float(FormulaNode(Formula(code, words, value), self))
        if type(value) is bool:
            self.assume(code if value else f"(not {code})", words if value else f"not ({words})")
        else:
            self.assume(f"({code} == {value!r})", f"{words} == {value!r}")
        return value


def formula_of(value: Any) -> Formula | None:
    """The formula behind a float that is computed from sizes."""
    node = value.node if isinstance(value, torch.SymFloat) else None
    if isinstance(node, FormulaNode):
        return node.formula
    shapes = getattr(getattr(node, "shape_env", None), "shapes", None)
    found: Formula | None = None if shapes is None else shapes.formula(value)  # made by torch's own C++
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, torch.SymInt):
        return frozen(value)
    return formula_of(value) if isinstance(value, torch.SymFloat) else value


def _applied(function: Callable[..., Any], args: list[str]) -> str:
    if function in INFIX:
        return f"({infix(function, args)})"
    if function is operator.neg:
        return f"(-{args[0]})"
    module = getattr(function, "__module__", "")
    return f"{'math.' if module == 'math' else ''}{_NAMES.get(function, function.__name__)}({', '.join(args)})"


_NAMES = {operator.truth: "bool", operator.abs: "abs", operator.pos: "+", float.is_integer: "float.is_integer"}


def with_methods(value: Any) -> Any:
    """Sizes as torch gives them, as Python code sees them."""
    if type(value) is torch.SymInt:
        return Extent(value.node)
    if type(value) is torch.Size:
        return value if all(type(n) is int for n in value) else torch.Size([with_methods(n) for n in value])
    return tuple(map(with_methods, value)) if type(value) is tuple else value


def without_methods(value: Any) -> Any:
    """Arguments as torch's own Python code wants them."""
    if isinstance(value, torch.SymInt):
        return _raw(value)
    if type(value) in (list, tuple, torch.Size):
        return list(map(without_methods, value)) if type(value) is list else tuple(map(without_methods, value))
    return {k: without_methods(v) for k, v in value.items()} if type(value) is dict else value


def _numbers(value: Any) -> Formulas:
    found: Formulas = value.node.shape_env.shapes.formulas
    return found


def _raw(value: Any) -> Any:
    return torch.SymInt(value.node) if isinstance(value, torch.SymInt) else value


def _binary(function: Callable[..., Any], *, is_reflected: bool = False) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float, torch.SymInt, torch.SymFloat)):
            return NotImplemented
        pair = (other, self) if is_reflected else (self, other)
        if function in _EXACT and (type(other) is int or isinstance(other, torch.SymInt)):
            return with_methods(function(*map(_raw, pair)))
        if function is operator.pow and not is_reflected and type(other) is int and 0 < other <= _FEW:
            return with_methods(_product(_raw(self), other))
        return _numbers(self).compute(function, pair)

    return method


_FEW = 8


def _product(value: Any, times: int) -> Any:
    return value if times == 1 else value * _product(value, times - 1)


def _compared(function: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, float) and not isinstance(other, torch.SymInt):
            return _numbers(self).compute(function, (self, other))
        if not isinstance(other, (int, torch.SymInt)):
            return NotImplemented
        return bool(function(_raw(self), _raw(other)))

    return method


def _known(convert: Callable[..., Any]) -> Any:
    return lambda self, *args: convert(operator.index(_raw(self)), *args)


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")

#: A size, which says that it is Python's own, so that code which asks goes the way that it goes in eager.
Extent: Any = type(
    "Extent",
    (torch.SymInt,),
    {
        **{f"__{name}__": _binary(getattr(operator, name)) for name in _ARITHMETIC},
        **{f"__r{name}__": _binary(getattr(operator, name), is_reflected=True) for name in _ARITHMETIC},
        **{f"__{name}__": _compared(getattr(operator, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
        "__neg__": lambda self: with_methods(-_raw(self)),
        "__pos__": lambda self: self,
        "__abs__": lambda self: self if self >= 0 else -self,
        "__bool__": lambda self: bool(_raw(self) != 0),
        "__float__": _known(float),
        "__int__": _known(int),
        "__index__": _known(operator.index),
        "__hash__": _known(hash),
        "__repr__": _known(repr),
        "__str__": _known(str),
        "__format__": _known(format),
        **{f"__{name}__": lambda self: self for name in ("floor", "ceil", "trunc", "copy")},
        "__round__": lambda self, digits=None: self,
        "__deepcopy__": lambda self, memo: self,
        "__class__": property(lambda self: int),
        "numbers": property(_numbers),
    },
)
