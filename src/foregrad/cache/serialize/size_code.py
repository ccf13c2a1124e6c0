"""Size code: the text of a size, such as `(4*dim0)`, computed without running it as Python.

A file says of a size how it is computed from those of dimensions: in integers, by the operators that there are here.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from foregrad.core.errors import CorruptArtifact

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {"max": torch.sym_max, "min": torch.sym_min}
_MOST = 10_000


def computed(code: Any, symbols: Mapping[str, Any]) -> Any:
    """What a text says, for these sizes of dimensions."""
    try:
        if type(code) is not str or len(code) > _MOST:
            raise ValueError("it is no text, or too long")
        return _value(ast.parse(code, mode="eval").body, symbols)
    except (SyntaxError, ValueError, KeyError, RecursionError) as error:
        raise CorruptArtifact(f"a size is computed by {str(code)[:80]!r}: {error}") from error


def _value(node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    match node:
        case ast.Name(name):
            return symbols[name]
        case ast.Constant(int(number)) if type(number) is int:
            return number
        case ast.UnaryOp(ast.USub(), inner):
            return -_value(inner, symbols)
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, symbols), _value(right, symbols))
        case ast.BinOp(left, ast.Pow(), ast.Constant(int(times))) if 0 < times <= _MOST_TIMES:
            return _power(_value(left, symbols), times)
        case ast.Call(ast.Name(name), args, []) if name in _FUNCTIONS and len(args) > 1:
            first, *rest = (_value(arg, symbols) for arg in args)
            for one in rest:
                first = _FUNCTIONS[name](first, one)
            return first
        case _:
            raise ValueError(f"{ast.unparse(node)} is no arithmetic of sizes")


_MOST_TIMES = 16


def _power(value: Any, times: int) -> Any:
    result = value
    for _ in range(times - 1):
        result = result * value
    return result
