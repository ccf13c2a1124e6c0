"""Native: the Python that Inductor writes around its kernels as one function of C++, beside them.

    def call(args):                                                     static void call(char* arg0, char* arg1,
        arg0, arg1 = args                                                                char* buf2, char* scratch) {
        buf0 = empty_strided_cpu((32, 128), (128, 1), torch.float32)        kernel_0::kernel(arg0, scratch);
        cpp_fused_0(arg0, buf0)                                   ──▶       product<...>(scratch, arg1, buf2);
        buf2 = empty_strided_cpu((32, 128), (128, 1), torch.float32)    }
        extern_kernels.mm(buf0, arg1, out=buf2)
        return (buf2,)

Python makes what is returned and one piece of memory for the rest. That is for graphs on little data, where calls and
allocations take a good part of the time: what Python would have freed on the way lives until the end.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from foregrad.backends.products import PRODUCTS, Matrix, product_call
from foregrad.record.impure import is_random
from foregrad.substrate import OpOverload

#: What the function is called in the module of the kernels.
CALL = "kernel_call"
#: And the text of the Python that calls it, in the module that Inductor wrote.
TEXT = "kernel_call_text"

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default, aten.addmm.default}
#: Ops that Inductor leaves to torch.
_LEFT_TO_TORCH = {aten.bmm.default, aten.baddbmm.default, aten.convolution.default, aten.convolution_backward.default}

_MOST_BYTES = 8 << 20
_ALIGNMENT = 64


@dataclass(frozen=True)
class Native:
    """The C++ function, and the Python that calls it."""

    cpp: str
    python: str


def native(text: str, kernels: Sequence[str], inputs: Sequence[Any]) -> Native | None:
    """From the text of a module of Inductor's, with the names of its kernels and what its inputs look like; None where
    it does anything else than to call kernels and small products."""
    bodies = [n.body for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.name == "call"]
    if len(bodies) != 1:
        return None
    reader = _Reader(list(kernels), inputs)
    try:
        for statement in bodies[0]:
            reader.read(statement)
        return reader.written()
    except _NotNative:
        return None


def may_be_native(graph: fx.GraphModule) -> bool:
    """Whether there is nothing in a lowered graph of which it is plain that C++ of ours cannot do it."""
    nodes = [n for n in graph.graph.nodes if isinstance(n.target, OpOverload)]
    return not any(
        n.target in _LEFT_TO_TORCH or is_random(n.target) or (n.target in _PRODUCTS and _product_of(n) is None)
        for n in nodes
    )


def _product_of(node: fx.Node) -> str | None:
    """The function for a product in a graph, if it is small."""
    a, b, out = (Matrix(tuple(v.shape), tuple(v.stride())) for v in (*_values(node.args[-2:]), node.meta["val"]))
    return product_call(a, b, out, has_bias=len(node.args) > 2)


def _values(nodes: Any) -> list[torch.Tensor]:
    return [node.meta["val"] for node in nodes]


class _NotNative(Exception):
    """Something that only Python can do."""


@dataclass(eq=False)
class _Root:
    """Memory: an argument, or what the function makes."""

    name: str
    num_bytes: int
    made: str = ""  # how, in Python
    is_returned: bool = False
    uses: list[int] = field(default_factory=list)  # the steps that use it


@dataclass(frozen=True)
class _Tensor:
    """A tensor in some memory."""

    root: _Root
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    offset: int = 0  # in elements
    is_whole: bool = True  # the tensor that the memory was made as

    def matrix(self) -> Matrix:
        if len(self.shape) != 2:
            raise _NotNative
        return Matrix((self.shape[0], self.shape[1]), (self.stride[0], self.stride[1]))

    def python(self) -> str:
        if self.is_whole:
            return self.root.name
        return f"reinterpret_tensor({self.root.name}, {self.shape}, {self.stride}, {self.offset})"


class _Reader:
    """Reads the statements of a call."""

    def __init__(self, kernels: list[str], inputs: Sequence[Any]) -> None:
        self.kernels = kernels
        self.inputs = inputs
        self.names: dict[str, _Tensor] = {}
        self.roots: list[_Root] = []
        self.steps: list[tuple[str, list[_Tensor | None]]] = []  # a function of C++, and its arguments
        self.taken: list[str] = []
        self.results: list[_Tensor | None] = []

    # -- reading --------------------------------------------------------------------------------------

    def read(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Assign([ast.Tuple(elts=names)], ast.Name("args")):
                self._take([name.id for name in names if isinstance(name, ast.Name)])
            case ast.Assign([ast.Name(name)], value):
                self.names[name] = self._tensor(value, name)
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("args"), "clear"))) | ast.Delete():
                pass  # memory is freed when the function returns
            case ast.Expr(ast.Call(ast.Name(name), arguments, [])) if name in self.kernels:
                function = f"kernel_{self.kernels.index(name)}::kernel"
                self._add(function, [self._tensor(argument) for argument in arguments])
            case ast.Expr(ast.Call(ast.Attribute(ast.Name("extern_kernels"), ("mm" | "addmm") as name), given, named)):
                self._product(name, given, {str(one.arg): one.value for one in named})
            case ast.Return(ast.Tuple(elts=values)):
                self.results = [None if _is_none(value) else self._tensor(value) for value in values]
            case _:
                raise _NotNative

    def _take(self, names: list[str]) -> None:
        if len(names) != len(self.inputs):
            raise _NotNative
        self.taken = names
        for name, given in zip(names, self.inputs, strict=True):
            if not isinstance(given, torch.Tensor) or given.device.type != "cpu":
                raise _NotNative
            self.names[name] = _Tensor(_Root(name, 0), tuple(given.shape), given.stride(), given.dtype)

    def _tensor(self, value: ast.expr, name: str = "") -> _Tensor:
        match value:
            case ast.Name(known) if known in self.names:
                return self.names[known]
            case ast.Call(ast.Name("empty_strided_cpu"), [shape, stride, ast.Attribute(ast.Name("torch"), kind)], []):
                made = _Tensor(_Root(name, 0, ast.unparse(value)), _numbers(shape), _numbers(stride), _dtype(kind))
                made.root.num_bytes = _extent(made) * made.dtype.itemsize
                self.roots.append(made.root)
                return made
            case ast.Call(ast.Name("reinterpret_tensor"), [ast.Name(known), shape, stride, offset], []) if (
                known in self.names
            ):
                base = self.names[known]
                seen = replace(base, shape=_numbers(shape), stride=_numbers(stride), is_whole=False)
                return replace(seen, offset=base.offset + int(ast.literal_eval(offset)))
            case _:
                raise _NotNative

    def _product(self, name: str, given: list[ast.expr], named: dict[str, ast.expr]) -> None:
        out = self._tensor(named.pop("out"))
        *bias, a, b = (self._tensor(one) for one in given)
        is_scaled = any(not isinstance(one, ast.Constant) or one.value != 1 for one in named.values())
        if is_scaled or any(t.dtype is not torch.float32 for t in (*bias, a, b, out)):
            raise _NotNative
        if bias and (bias[0].shape[-1] != out.shape[-1] or bias[0].stride[-1:] != (1,) or any(bias[0].stride[:-1])):
            raise _NotNative
        function = product_call(a.matrix(), b.matrix(), out.matrix(), has_bias=bool(bias))
        if function is None:
            raise _NotNative
        self._add(function, [a, b, bias[0] if bias else None, out])

    def _add(self, function: str, arguments: list[_Tensor | None]) -> None:
        for tensor in arguments:
            if tensor is not None:
                tensor.root.uses.append(len(self.steps))
        self.steps.append((function, arguments))

    # -- writing --------------------------------------------------------------------------------------

    def written(self) -> Native | None:
        for result in self.results:
            if result is not None:
                result.root.is_returned = True
        if len(self.steps) < 2 or sum(root.num_bytes for root in self.roots) > _MOST_BYTES:
            return None
        places, num_bytes = _arranged([root for root in self.roots if not root.is_returned and root.uses])
        given = [name for name in self.taken if self.names[name].root.uses]
        made = [root for root in self.roots if root.is_returned]
        passed = [*given, *(root.name for root in made if root.uses), *(["scratch"] if num_bytes else [])]
        lines = [f"    {function}({', '.join(map(_data(places), arguments))});\n" for function, arguments in self.steps]
        head = f"static void call({', '.join(f'char* {name}' for name in passed)}) {{\n"
        body = [
            f"{', '.join(self.taken)}, = args",
            "args.clear()",
            *(f"{root.name} = {root.made}" for root in made),
            *([f"scratch = empty_strided_cpu(({num_bytes},), (1,), torch.uint8)"] if num_bytes else []),
            f"{CALL}({', '.join(passed)})",
            f"return ({''.join(f'{result.python() if result else None}, ' for result in self.results)})",
        ]
        python = "def call(args):\n" + "".join(f"    {line}\n" for line in body)
        return Native(f"{_DATA}{PRODUCTS}{head}{''.join(lines)}}}\n", python)


#: A pointer to data of any type.
_DATA = """
struct Data {
    char* data;
    template <typename T> operator T*() const { return reinterpret_cast<T*>(data); }
};
"""


def _data(places: dict[_Root, int]) -> Any:
    def written(tensor: _Tensor | None) -> str:
        if tensor is None:
            return "nullptr"
        start = f"scratch + {places[tensor.root]}" if tensor.root in places else tensor.root.name
        return f"Data{{{start} + {tensor.offset * tensor.dtype.itemsize}}}"

    return written


def _arranged(roots: list[_Root]) -> tuple[dict[_Root, int], int]:
    """Where each lies in one piece of memory, beside those that are used in the same time, and how long that is."""
    places: dict[_Root, int] = {}
    for root in sorted(roots, key=lambda r: (-r.num_bytes, r.uses[0])):
        others = [o for o in places if o.uses[0] <= root.uses[-1] and root.uses[0] <= o.uses[-1]]
        start = 0
        for other in sorted(others, key=places.__getitem__):
            if places[other] >= start + root.num_bytes:
                break
            start = max(start, _aligned(places[other] + other.num_bytes))
        places[root] = start
    return places, max((start + root.num_bytes for root, start in places.items()), default=0)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT


def _extent(tensor: _Tensor) -> int:
    if 0 in tensor.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))


def _numbers(value: ast.expr) -> tuple[int, ...]:
    try:
        found = ast.literal_eval(value)
    except ValueError:
        raise _NotNative from None
    return tuple(found)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise _NotNative
    return found


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
