"""What foregrad reads in the text that Inductor writes. Nothing else looks into it.

Inductor keeps the calls of its kernels as text too, so there is nothing to ask for instead: a line of its wrapper code
has `reinterpret_tensor(buf0, (4, 8), (1, 4), 0)` as one string. Its Python is parsed; whatever is not understood stays
as Inductor wrote it. `tests/backends/test_inductor_text.py` says what a release of torch writes otherwise.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.generated import load_source


@dataclass(frozen=True)
class Kernel:
    """The C++ of a function `kernel`, apart from the headers that it needs."""

    headers: tuple[str, ...]
    body: str

    @staticmethod
    def of(source: str) -> Kernel:
        """From a file of Inductor's. Functions that are called by their names in C cannot be in namespaces."""
        lines = source.splitlines()
        headers = tuple(line for line in lines if line.startswith("#include"))
        body = "\n".join(line.removeprefix('extern "C"') for line in lines if not line.startswith("#include"))
        return Kernel(headers, body)


class OnlyPython(Exception):
    """Something that only Python can do."""


@dataclass(frozen=True)
class Empty:
    """A tensor that is made."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    def __str__(self) -> str:
        return f"empty_strided_cpu({self.shape}, {self.stride}, {self.dtype})"


@dataclass(frozen=True)
class View:
    """A variable, seen otherwise."""

    of: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


#: A variable by its name, or what has none.
Value = str | Empty | View | None


@dataclass(frozen=True)
class Assigned:
    """`buf0 = empty_strided_cpu((32, 128), (128, 1), torch.float32)`"""

    name: str
    value: Value


@dataclass(frozen=True)
class Called:
    """`cpp_fused_0(arg0, buf0)`, `extern_kernels.addmm(arg1, buf0, arg2, alpha=1, beta=1, out=buf1)`"""

    function: str
    arguments: tuple[Value, ...]
    out: Value = None
    scales: tuple[Any, ...] = ()  # `alpha` and `beta`


Step = Assigned | Called


@dataclass(frozen=True)
class WrapperSteps:
    """What the function does that a module of Inductor's defines, but for what it frees."""

    taken: tuple[str, ...]
    steps: tuple[Step, ...]
    returned: tuple[Value, ...]


def steps_in(text: str) -> WrapperSteps:
    call = _call_in(text)
    if call is None:
        raise OnlyPython
    taken: tuple[str, ...] = ()
    steps: list[Step] = []
    returned: tuple[Value, ...] = ()
    for one in call.body:
        match one:
            case ast.Assign([ast.Tuple(elts=names)], ast.Name("args")):
                taken = tuple(name.id for name in names if isinstance(name, ast.Name))
            case ast.Assign([ast.Name(name)], value):
                steps.append(Assigned(name, _value(value)))
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("args"), "clear"))) | ast.Delete():
                pass
            case ast.Expr(ast.Call(function, arguments, named)):
                given = {str(one.arg): one.value for one in named}
                out = _value(given.pop("out")) if "out" in given else None
                scales = tuple(map(_literal, given.values()))
                steps.append(Called(ast.unparse(function), tuple(map(_value, arguments)), out, scales))
            case ast.Return(ast.Tuple(elts=values)):
                returned = tuple(map(_value, values))
            case _:
                raise OnlyPython
    return WrapperSteps(taken, tuple(steps), returned)


def _value(value: ast.expr) -> Value:
    match value:
        case ast.Constant(None):
            return None
        case ast.Name(name):
            return name
        case ast.Call(ast.Name("empty_strided_cpu"), [shape, stride, ast.Attribute(ast.Name("torch"), kind)], []):
            return Empty(_literal(shape), _literal(stride), getattr(torch, kind))
        case ast.Call(ast.Name("reinterpret_tensor"), [ast.Name(name), shape, stride, offset], []):
            return View(name, _literal(shape), _literal(stride), _literal(offset))
        case _:
            raise OnlyPython


def _literal(value: ast.expr) -> Any:
    try:
        return ast.literal_eval(value)
    except ValueError:
        raise OnlyPython from None


def _call_in(text: str) -> ast.FunctionDef | None:
    """The function that a module of Inductor's defines: a method, which needs nothing of its object."""
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    if len(found) != 1 or any(isinstance(n, ast.Name) and n.id == "self" for n in ast.walk(found[0])):
        return None
    return found[0]


def function_of(
    text: str, call: Callable[[list[Any]], Any], instead: Mapping[str, Any] | None = None
) -> Callable[[list[Any]], Any]:
    """The function that a module of Inductor's defines, on its own; as it is, where it needs more of its module. It
    calls others `instead` of some functions, which are given as Inductor writes them.

    The module also imports the compiler and holds the C++ of the kernels; the function needs neither, and can be kept
    in a file beside the kernels as they were built."""
    found = _call_in(text)
    if found is None:
        return call
    names = _OwnNames(call.__globals__, instead or {})
    body = "\n".join(f"    {line}" for one in found.body for line in ast.unparse(names.visit(one)).split("\n"))
    return load_source(f"def call(args):\n{body}\n", names.namespace, "call")


class _OwnNames(ast.NodeTransformer):
    """Gives the functions that are called names of their own: a file can hold these, and not what they are found in."""

    def __init__(self, scope: Mapping[str, Any], instead: Mapping[str, Any]) -> None:
        self._scope = scope
        self._instead = instead
        self.namespace: dict[str, Any] = {}

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        name = ast.unparse(node)
        if name in self._instead:
            return self._named(f"instead_of_{node.attr}", self._instead[name])
        if isinstance(node.value, ast.Name) and node.value.id == "extern_kernels":
            return self._named(f"extern_{node.attr}", getattr(self._scope["extern_kernels"], node.attr))
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._scope:
            self.namespace[node.id] = self._scope[node.id]
        return node

    def _named(self, name: str, value: Any) -> ast.expr:
        self.namespace[name] = value
        return ast.Name(name, ast.Load())
