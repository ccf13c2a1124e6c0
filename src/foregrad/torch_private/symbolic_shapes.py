"""Torch's symbols for sizes. Imported when a dimension varies, since it brings sympy."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch._guards import Source
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

from foregrad.core.errors import CaptureError
from foregrad.core.size import Formula, Size

__all__ = ["Shapes"]

#: What generated code may call on sizes: arithmetic of integers is exact.
_EXACT = {"max", "min"}


class _Dimension(Source):
    """Where a symbol is read, in words."""

    def __init__(self, text: str) -> None:
        self.text = text

    @property
    def _name_template(self) -> str:
        return self.text


class _Printer(PythonPrinter):
    """Expressions in the names that symbols have here, on plain numbers."""

    def __init__(self, names: dict[str, str]) -> None:
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr: Any) -> str:
        return self._names[expr.name]

    def _print_ToFloat(self, expr: Any) -> str:
        return f"float({self._print(expr.args[0])})"

    def _helper_sqrt(self, expr: Any) -> str:
        return f"math.sqrt({self._print(expr)})"


class _Environment(ShapeEnv):
    """Torch's record of symbols and guards, which says when it has a new guard."""

    def __init__(self, shapes: Shapes, on_guard: Callable[[], None]) -> None:
        super().__init__(
            allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False, duck_shape=False, specialize_zero_one=True
        )
        self.shapes = shapes
        self._on_guard = on_guard

    def _log_guard(self, prefix: str, g: Any, forcing_spec: bool) -> None:
        if "suppressed" not in prefix:
            self._on_guard()


class Shapes:
    """Symbols, their values in one call, and the guards under which what was computed with them holds.

    A size is at least 2: 0 and 1 behave otherwise, and get programs of their own. `on_guard` is called for each guard.
    """

    def __init__(self, on_guard: Callable[[], None], formulas: Any) -> None:
        self.formulas = formulas  # of floats
        self._environment = _Environment(self, on_guard)
        self.mode = FakeTensorMode(shape_env=self._environment, allow_non_fake_inputs=False)
        self.mode.cache_enabled = False  # a cache costs more than it saves: an op is asked once for each look
        self._code: dict[str, str] = {}
        self._text: dict[str, str] = {}
        self._words: dict[str, str] = {}
        self._values: dict[Any, Any] = {}
        self._sizes: dict[Any, Any] = {}
        self._factored: dict[Any, Any] = {}
        self._positive: set[Any] = set()

    def new_symbol(
        self, value: int, code: str, text: str, words: str, least: int = 2, most: int | None = None
    ) -> torch.SymInt:
        """A symbol for a dimension of this size: its name in generated code, in listings, and in words. Within which
        bounds its size is, is for others to check."""
        source = _Dimension(text)
        symbol = self._environment.create_symbol(value, source, dynamic_dim=DimDynamic.DYNAMIC)
        # No tensor has as many elements as there are numbers.
        bounds = ValueRanges(max(2, least), int_oo if most is None else most)
        self._environment.var_to_range[symbol] = bounds
        self._code[symbol.name], self._text[symbol.name], self._words[symbol.name] = code, text, words
        self._values[symbol] = sympy.Integer(value)
        found: Any = self._environment.create_symintnode(symbol, hint=value, source=source)
        return found

    # -- what a `Size` asks ---------------------------------------------------------------------------

    def size(self, value: Any) -> Any:
        """The expression behind torch's symbol, in one form for each polynomial."""
        expression = value.node.expr
        if expression not in self._sizes:
            expanded = sympy.expand(expression)
            value = self.value_of(expanded)
            self._sizes[expression] = value if expanded.is_Integer else Size(expanded, value, self)
        return self._sizes[expression]

    def positive(self, value: Any) -> Any:
        """The same for the size of a dimension, which is not to be 0."""
        expression = value.node.expr
        if expression not in self._positive:
            if value == 0 and not isinstance(self.size(value), int):
                raise CaptureError(f"{self.words(expression)} is 0 here, as a size that varies.")
            self._positive.add(expression)
        return self.size(value)

    def are_equal(self, one: Size, other: Any) -> bool:
        expression = other.expression if isinstance(other, Size) else sympy.Integer(other)
        if one.expression == expression:
            return True
        replace = self._environment.replace
        return bool(self._environment.replacements) and sympy.expand(replace(one.expression) - replace(expression)) == 0

    def symint(self, expression: Any) -> torch.SymInt:
        """In factors, as torch has it: of a sum it does not see that it can be divided by one of them."""
        if expression not in self._factored:
            self._factored[expression] = sympy.factor(expression)
        found: Any = self._environment.create_symintnode(self._factored[expression], hint=self.value_of(expression))
        return found

    def symbols_of(self, expression: Any) -> tuple[Size, ...]:
        """The dimensions that an expression is computed from, as sizes, in the order in which they got their names."""
        found = [symbol for symbol in self._values if symbol in expression.free_symbols]
        return tuple(Size(symbol, int(self._values[symbol]), self) for symbol in found)

    def value_of(self, expression: Any) -> Any:
        found = expression.xreplace(self._values)
        return int(found) if found.is_integer else float(found)

    def code(self, expression: Any) -> str:
        """Python over `dim0`, `dim1` and so on, in integers alone: these are exact in any order."""
        text = _Printer(self._code).doprint(expression)
        parsed = ast.parse(text, mode="eval")
        if not all(map(self._is_of_integers, ast.walk(parsed))):
            raise CaptureError(f"{self.words(expression)} is not computed in integers alone.")
        return text if isinstance(parsed.body, (ast.Name, ast.Constant)) else f"({text})"

    def _is_of_integers(self, part: ast.AST) -> bool:
        """Whether a part of an expression does not lead from integers to other numbers."""
        if isinstance(part, ast.Name):
            return part.id in _EXACT or part.id in self._code.values()
        return not isinstance(part, (ast.Attribute, ast.Div)) and type(getattr(part, "value", 0)) is not float

    def formula(self, value: torch.SymFloat) -> Formula:
        """A float that torch itself has computed from sizes, if it is computed in one order only."""
        expression = value.node.expr
        if any(len(part.args) > 2 for part in expression.atoms(sympy.Add, sympy.Mul) if not part.is_integer):
            raise CaptureError(f"{self.words(expression)} is not computed in one order only.")
        return Formula(
            f"({_Printer(self._code).doprint(expression)})", self.text(expression), self.value_of(expression)
        )

    def text(self, expression: Any) -> str:
        """The same in the names of dimensions."""
        return _Printer(self._text).doprint(self._environment.replace(expression)).replace(" ", "")

    def words(self, expression: Any) -> str:
        """A condition as the user would write it."""
        return str(_Printer(self._words).doprint(expression))

    # -- guards ---------------------------------------------------------------------------------------

    def assumed(self) -> list[Any]:
        """What was found to hold, as expressions, in order."""
        return [guard.expr for guard in self._environment.guards]
