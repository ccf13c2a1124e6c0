"""Numbers: Python's numbers in declared state, as inputs of the program.

A number is a `torch.SymFloat` or `torch.SymInt`, which torch takes wherever it takes a number, over an expression that
has a value at hand. Arithmetic makes larger expressions; each call evaluates them anew, in Python, as eager does. Where
Python needs to know (`if weight_decay != 0`, `int(step)`), what it was told is a guard.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.origins import where
from foregrad.record.session import MATH
from foregrad.record.symbols.data_values import item_of, over_items
from foregrad.record.symbols.node import Symbolic, init_of


@dataclass(eq=False, slots=True, repr=False)
class Expression(Symbolic):
    """A number as it is computed: a function of other numbers, or, without one, where it is read.

    It is also what torch calls a node: the object behind a `torch.SymFloat`.
    """

    numbers: SymbolicNumbers
    index: int  # expressions are evaluated in this order
    value: Any
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()  # expressions and plain numbers
    source: Any = None  # where a number is read, if it is computed from no others
    text: str = ""
    is_given: bool = False  # a number among the arguments, or computed from one

    def __repr__(self) -> str:
        """As generated code names it."""
        return f"n{self.index}"

    def symbol(self) -> Any:
        """What Python code gets to see."""
        return (Float if type(self.value) is float else Int)(self)

    def known(self) -> Any:
        """The value itself: from here on the program holds for this value only."""
        return self.numbers.tell(self, self.value)

    # -- what torch asks of a node --------------------------------------------------------------------

    def is_int(self) -> bool:
        return type(self.value) is int

    def is_float(self) -> bool:
        return type(self.value) is float

    def has_hint(self) -> bool:
        return True

    def maybe_as_int(self) -> None:
        return None

    def maybe_as_bool(self) -> None:
        return None

    def constant_int(self) -> None:
        return None

    def guard_int(self, file: str, line: int) -> Any:
        return self.known()

    def guard_float(self, file: str, line: int) -> Any:
        return float(self.known())

    def wrap_int(self, value: int) -> Expression:
        return self.numbers.constant(value)

    def wrap_float(self, value: float) -> Expression:
        return self.numbers.constant(value)


@dataclass(frozen=True, eq=False, slots=True)
class Told:
    """What Python was told about a number, so that a program holds only where it is so."""

    expression: Expression
    value: Any
    after: int  # how many expressions there were
    line: str

    @property
    def in_words(self) -> str:
        if isinstance(self.value, bool):
            return self.expression.text if self.value else f"not {_inner(self.expression.text)}"
        return f"{self.expression.text} is {self.value!r}"


class ValueNeeded(CaptureError):
    """A backward has to know the value of a number that can change, which comes from these places of the arguments."""

    def __init__(self, places: tuple[Any, ...], *said: str) -> None:
        super().__init__(*said)
        self.places = places


def _given_in(expression: Expression) -> Iterator[Any]:
    if expression.is_given and expression.function is None:
        yield expression.source
    for one in expression.args:
        if isinstance(one, Expression):
            yield from _given_in(one)


@dataclass(eq=False)
class SymbolicNumbers:
    """Every expression made while recording, in order, and what Python was told about them."""

    module: Callable[[], str] = lambda: ""
    all: list[Expression] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    given: dict[Any, Expression] = field(default_factory=dict)  # numbers among the arguments, by their places
    used: dict[Expression, None] = field(default_factory=dict)  # of what is computed from these, what ops take
    is_closed: bool = False  # the function has returned: what is told now, no guard would check
    _known: dict[Any, Expression] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)

    def read(self, source: Any, value: Any, text: str) -> Expression:
        """A number that each call reads."""
        return self._new(Expression(self, len(self.all), value, source=source, text=text))

    def read_given(self, place: Any, value: Any, text: str) -> Expression:
        """A number among the arguments."""
        found = self._new(Expression(self, len(self.all), value, source=place, text=text, is_given=True))
        self.given[place] = found
        return found

    @property
    def carried(self) -> tuple[Expression, ...]:
        """Numbers that a backward may take: those of the arguments, and what the forward took that comes from them."""
        return tuple(dict.fromkeys([*self.given.values(), *self.used]))

    def constant(self, value: Any) -> Expression:
        return self._once(("constant", type(value), repr(value)), lambda: value, _identity, (value,), repr(value))

    def compute(self, function: Callable[..., Any], args: tuple[Any, ...], text: str = "") -> Any:
        """What a function of numbers gives: a number, or a plain truth that becomes a guard."""
        given = tuple(a.node if isinstance(a, (Float, Int)) else a for a in args)
        keys = tuple(a.index if isinstance(a, Expression) else (type(a), repr(a)) for a in given)
        found = self._known.get((function, keys))
        if found is None:
            value = function(*[a.value if isinstance(a, Expression) else a for a in given])
            found = self._once((function, keys), lambda: value, function, given, text or _text(function, given))
        if type(found.value) in (float, int):
            return found.symbol()
        return self.tell(found, found.value)

    def _once(self, key: Any, value: Callable[[], Any], function: Any, args: Any, text: str) -> Expression:
        found = self._known.get(key)
        if found is None:
            is_given = any(isinstance(one, Expression) and one.is_given for one in args)
            found = self._new(Expression(self, len(self.all), value(), function, args, None, text, is_given))
            self._known[key] = found
        return found

    def _new(self, expression: Expression) -> Expression:
        self.all.append(expression)
        return expression

    def tell(self, expression: Expression, value: Any) -> Any:
        """Let Python know a value, and the program depend on it."""
        if expression.index not in self._told:
            if self.is_closed:
                raise ValueNeeded(
                    tuple(_given_in(expression)),
                    f"a backward needs the number {expression.text}, which can change between calls.\n"
                    f"{where(self.module())}\nMake it a tensor, or use it outside.",
                )
            self._told.add(expression.index)
            self.told.append(Told(expression, value, len(self.all), where(self.module()).strip()))
        return value


def _identity(value: Any) -> Any:
    return value


INFIX = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.eq: "==",
    operator.ne: "!=",
}


def infix(function: Any, args: list[str]) -> str:
    """Python for two operands with an operator between them: `(-1) ** n0`, where `-1 ** n0` would be another number."""
    return f" {INFIX[function]} ".join(f"({text})" if text.startswith("-") else text for text in args)


def _text(function: Any, args: tuple[Any, ...]) -> str:
    texts = [a.text if isinstance(a, Expression) else repr(a) for a in args]
    if function is operator.neg:
        return f"-{_inner(texts[0])}"
    if function in INFIX:
        return f"{_inner(texts[0])} {INFIX[function]} {_inner(texts[1])}"
    return f"{function.__name__}({', '.join(texts)})"


def _inner(text: str) -> str:
    return f"({text})" if " " in text and not text.endswith(")") else text


def expression_of(value: Any) -> Expression | None:
    """The expression behind a number, however torch has wrapped it."""
    node = value.node if isinstance(value, (torch.SymFloat, torch.SymInt)) else None
    return node if isinstance(node, Expression) else None


# -- what Python code sees ----------------------------------------------------------------------------------


def _unary(function: Callable[..., Any]) -> Any:
    return lambda self: self.node.numbers.compute(function, (self,))


def _binary(function: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float, Float, Int)) or item_of(other) is not None:
            return NotImplemented  # a number of data does it
        return self.node.numbers.compute(function, (self, _of_python(other)))

    return method


def _of_python(number: Any) -> Any:
    """A number as one of Python's own: those of NumPy in double precision are."""
    return float(number) if isinstance(number, float) and type(number) not in (float, Float) else number


def _reflected(function: Callable[..., Any]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not isinstance(other, (int, float)) or item_of(other) is not None:
            return NotImplemented
        return self.node.numbers.compute(function, (_of_python(other), self))

    return method


def _told(convert: Callable[..., Any]) -> Any:
    return lambda self, *args: convert(self.node.known(), *args)


def _array(self: Any, *options: Any, **more: Any) -> Any:
    """What NumPy is told: the value, for which the capture is made. An object with methods would be none to it."""
    node = self.node
    places = tuple(_given_in(node))
    if places:
        raise ValueNeeded(places, f"NumPy asks for the number {node.text}.\n{where(node.numbers.module())}")
    import numpy  # which asks, so that it is there

    return numpy.asarray(node.known(), *options, **more)


_ARITHMETIC = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
_METHODS: dict[str, Any] = {
    **{f"__{name}__": _binary(getattr(operator, name)) for name in _ARITHMETIC},
    **{f"__r{name}__": _reflected(getattr(operator, name)) for name in _ARITHMETIC},
    **{f"__{name}__": _binary(getattr(operator, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{f"__{name}__": _unary(getattr(operator, name)) for name in ("neg", "pos", "abs")},
    **{f"__{name}__": _unary(getattr(math, name)) for name in ("floor", "ceil", "trunc")},
    "__bool__": _unary(operator.truth),
    "__round__": lambda self, digits=None: self.node.numbers.compute(builtins.round, (self, digits)),
    "__int__": _told(int),
    "__float__": _told(float),
    "__hash__": _told(hash),
    "__repr__": _told(repr),
    "__str__": _told(str),
    "__format__": _told(format),
    "__array__": _array,
    "__array_ufunc__": None,  # numbers of NumPy's let it compute
    "is_integer": lambda self: self.node.numbers.compute(float.is_integer, (self,)),
    "numbers": property(lambda self: self.node.numbers),
    "__copy__": lambda self: self,
    "__deepcopy__": lambda self, memo: self,
}
# They say that they are Python's own, so that code which asks goes the way that it goes in eager.
Float: Any = type(
    "Float",
    (torch.SymFloat,),
    {**_METHODS, "__init__": init_of(torch.SymFloat), "__class__": property(lambda self: float)},
)
Int: Any = type(
    "Int",
    (torch.SymInt,),
    {
        **_METHODS,
        "__init__": init_of(torch.SymInt),
        "__index__": _told(operator.index),
        "__class__": property(lambda self: int),
    },
)


# -- functions of Python that take numbers ------------------------------------------------------------------


@contextmanager
def numbers_in_math() -> Iterator[None]:
    """Let the functions of `math` take numbers; for all others they do what they always do."""
    with MATH.by(_over_numbers):
        yield


def _over_numbers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    symbols = (a for a in args if isinstance(a, (torch.SymFloat, torch.SymInt)) and hasattr(a, "numbers"))
    number = next(symbols, None)
    if number is None or kwargs:
        return over_items(function, *args, **kwargs)
    return number.numbers.compute(function, args)
