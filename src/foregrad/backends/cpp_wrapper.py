"""C++ wrapper: the Python that Inductor writes around its kernels as one C++ function beside them.

    def call(args):                                                     static void call(char* const* data) {
        arg0, arg1 = args                                                   char *arg0 = data[0], *arg1 = data[1],
        buf0 = empty_strided_cpu((32, 128), (128, 1), torch.float32)             *buf2 = data[2], *scratch = data[3];
        cpp_fused_0(arg0, buf0)                                   ──▶       kernel_0::kernel(arg0, scratch);
        buf2 = empty_strided_cpu((32, 128), (128, 1), torch.float32)        product<...>(scratch, arg1, buf2);
        extern_kernels.mm(buf0, arg1, out=buf2)                         }
        return (buf2,)

The function makes no memory: it is passed what it returns, and one piece for the rest. That is for graphs on little
data, where calls and allocations take a good part of the time: what Python would have freed on the way lives until the
end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from foregrad.backends.kernels.buffer_layout import arranged
from foregrad.backends.kernels.products import PRODUCTS, Matrix, fetch_call, product_call
from foregrad.record.impure import is_random
from foregrad.torch_private.inductor_text import (
    Assigned,
    Called,
    Empty,
    OnlyPython,
    Value,
    View,
    WrapperSteps,
    steps_in,
)
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten
_PRODUCTS = {aten.mm.default, aten.addmm.default}
#: Ops that Inductor leaves to torch.
_LEFT_TO_TORCH = {aten.bmm.default, aten.baddbmm.default, aten.convolution.default, aten.convolution_backward.default}

_MOST_BYTES = 8 << 20


@dataclass(frozen=True)
class ScratchMemory:
    """Memory that a function is passed and returns: the Python that makes it, and its size."""

    text: str
    num_bytes: int


@dataclass(frozen=True)
class Result:
    """A tensor that is returned, in some memory: that of an argument, or after these of what is made."""

    memory: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int  # in elements
    itemsize: int
    is_whole: bool  # the very tensor that the memory is


@dataclass(frozen=True)
class CallPlan:
    """How a function is called: what is made for it, what it is passed, and what it returns."""

    made: tuple[ScratchMemory, ...]
    num_bytes: int  # of the memory for the rest
    passed: tuple[int, ...]  # arguments, after these what is made, after these the memory for the rest
    results: tuple[Result | None, ...]


@dataclass(frozen=True)
class Native:
    """The C++ function, and how it is called."""

    cpp: str
    plan: CallPlan


def native(text: str, kernels: Sequence[str], inputs: Sequence[Any]) -> Native | None:
    """From the text of a module of Inductor's, with the names of its kernels and what its inputs look like; None where
    it does anything else than to call kernels and small products."""
    try:
        return _Reader(list(kernels), inputs).read(steps_in(text)).written()
    except OnlyPython:
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
    *bias, a, b = (arg.meta["val"] for arg in node.args if isinstance(arg, fx.Node))
    out: torch.Tensor = node.meta["val"]
    given = [a, b, out, *(one.expand(out.shape) for one in bias)]
    return product_call(*(Matrix(tuple(one.shape), tuple(one.stride())) for one in given))


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
            raise OnlyPython
        return Matrix((self.shape[0], self.shape[1]), (self.stride[0], self.stride[1]))

    def expanded(self, shape: tuple[int, ...]) -> _Tensor:
        """As an op that broadcasts reads it."""
        missing = len(shape) - len(self.shape)
        sizes, strides = (1,) * missing + self.shape, (0,) * missing + self.stride
        read = tuple(stride if size > 1 else 0 for size, stride in zip(sizes, strides, strict=True))
        return replace(self, shape=shape, stride=read)

    def given_from(self, memory: Sequence[_Root]) -> Result:
        at = memory.index(self.root)
        return Result(at, self.shape, self.stride, self.offset, self.dtype.itemsize, self.is_whole)


#: A function of C++, and its arguments.
_Step = tuple[str, list[_Tensor | None]]


class _Reader:
    """Reads the statements of a call."""

    def __init__(self, kernels: list[str], inputs: Sequence[Any]) -> None:
        self.kernels = kernels
        self.inputs = inputs
        self.names: dict[str, _Tensor] = {}
        self.roots: list[_Root] = []
        self.steps: list[_Step] = []
        self.fetched: dict[int, _Step] = {}  # what is sent for before a step, since the next one needs it
        self.taken: tuple[str, ...] = ()
        self.results: list[_Tensor | None] = []

    # -- reading --------------------------------------------------------------------------------------

    def read(self, call: WrapperSteps) -> _Reader:
        self._take(call.taken)
        for step in call.steps:
            match step:
                case Assigned(name, value):
                    self.names[name] = self._tensor(value, name)
                case Called(name, arguments, None, ()) if name in self.kernels:
                    function = f"kernel_{self.kernels.index(name)}::kernel"
                    self._add(function, [self._tensor(argument) for argument in arguments])
                case Called("extern_kernels.mm" | "extern_kernels.addmm"):
                    self._product(step)
                case _:
                    raise OnlyPython
        self.results = [None if value is None else self._tensor(value) for value in call.returned]
        return self

    def _take(self, names: tuple[str, ...]) -> None:
        if len(names) != len(self.inputs):
            raise OnlyPython
        self.taken = names
        for name, given in zip(names, self.inputs, strict=True):
            if not isinstance(given, torch.Tensor) or given.device.type != "cpu":
                raise OnlyPython
            self.names[name] = _Tensor(_Root(name, 0), tuple(given.shape), given.stride(), given.dtype)

    def _tensor(self, value: Value, name: str = "") -> _Tensor:
        match value:
            case str() if value in self.names:
                return self.names[value]
            case Empty(shape, stride, dtype):
                made = _Tensor(_Root(name, 0, str(value)), shape, stride, dtype)
                made.root.num_bytes = _extent(made) * made.dtype.itemsize
                self.roots.append(made.root)
                return made
            case View(known, shape, stride, offset) if known in self.names:
                base = self.names[known]
                return replace(base, shape=shape, stride=stride, offset=base.offset + offset, is_whole=False)
            case _:
                raise OnlyPython

    def _product(self, called: Called) -> None:
        out = self._tensor(called.out)
        *bias, a, b = map(self._tensor, called.arguments)
        is_scaled = any(scale != 1 for scale in called.scales)
        if is_scaled or any(t.dtype is not torch.float32 for t in (*bias, a, b, out)):
            raise OnlyPython
        added = [one.expanded(out.shape) for one in bias]
        function = product_call(*(one.matrix() for one in (a, b, out, *added)))
        if function is None:
            raise OnlyPython
        if not b.root.made:  # from outside, so it may lie far away
            self.fetched[len(self.steps) - 1] = (fetch_call(b.matrix()), [b])
        self._add(function, [a, b, bias[0] if bias else None, out])

    def _add(self, function: str, arguments: list[_Tensor | None]) -> None:
        for tensor in arguments:
            if tensor is not None:
                tensor.root.uses.append(len(self.steps))
        self.steps.append((function, arguments))

    # -- writing --------------------------------------------------------------------------------------

    def written(self) -> Native | None:
        returned = Counter(result.root for result in self.results if result is not None)
        for root in returned:
            root.is_returned = True
        self.results = [_made_as(r) if r is not None and returned[r.root] == 1 else r for r in self.results]
        if not self.steps or sum(root.num_bytes for root in self.roots) > _MOST_BYTES:
            return None
        places, num_bytes = arranged([root for root in self.roots if not root.is_returned and root.uses])
        made = [root for root in self.roots if root.is_returned]
        memory = [*(self.names[name].root for name in self.taken), *made]
        used = [place for place, root in enumerate(memory) if root.uses]
        plan = CallPlan(
            made=tuple(ScratchMemory(root.made, root.num_bytes) for root in made),
            num_bytes=num_bytes,
            passed=(*used, *([len(memory)] if num_bytes else [])),
            results=tuple(None if r is None else r.given_from(memory) for r in self.results),
        )
        names = [*(memory[place].name for place in used), "scratch"]
        lines = [
            *(f"char* {name} = data[{place}];\n" for place, name in enumerate(names[: len(plan.passed)])),
            *(f"{function}({', '.join(map(_data(places), arguments))});\n" for function, arguments in self._calls()),
        ]
        body = "".join(f"    {line}" for line in lines)
        return Native(f"{_DATA}{PRODUCTS}static void call(char* const* data) {{\n{body}}}\n", plan)

    def _calls(self) -> Iterator[_Step]:
        for number, step in enumerate(self.steps):
            if number in self.fetched:
                yield self.fetched[number]
            yield step


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


def _made_as(result: _Tensor) -> _Tensor:
    """The only tensor that is returned of some memory: where it is all of it, the memory is made as it."""
    if result.is_whole or not result.root.made or _extent(result) * result.dtype.itemsize != result.root.num_bytes:
        return result
    result.root.made = str(Empty(result.shape, result.stride, result.dtype))
    return replace(result, is_whole=True)


def _extent(tensor: _Tensor) -> int:
    if 0 in tensor.shape:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride, strict=True))
