"""Numbers as tensors: where a graph takes Python numbers, compiled code takes zero-dimensional tensors.

One compiled graph then does for all values of a learning rate. Ops that take a number where ATen knows no tensor are
spelt out in tensors: `add(x, y, alpha=lr)` is `x + y * lr`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Runner
from foregrad.core.generated import load_source
from foregrad.core.spec import NumberSpec, SizeSpec
from foregrad.torch_private.ops import OpOverload, schema_of

Tensor = torch.Tensor


def takes_numbers(node: fx.Node) -> bool:
    """Whether an op takes a number that is an input of the graph; sizes stay what they are."""
    return any(is_varying(n.meta.get("spec")) for n in node.all_input_nodes)


def is_varying(spec: Any) -> bool:
    """Whether an input is a number that compiled code takes as a tensor."""
    return isinstance(spec, NumberSpec) and not isinstance(spec, SizeSpec)


def in_tensors(node: fx.Node) -> Callable[..., Any]:
    """A function that computes an op with tensors in the place of its numbers."""
    func: Any = node.target
    assert isinstance(func, OpOverload)
    name, spec = schema_of(func).name.removeprefix("aten::"), node.meta.get("spec")
    dtype = torch.float64 if spec is None else spec.dtype

    def compute(*args: Any, **options: Any) -> Any:
        if name.startswith("_foreach_"):
            return _each(_ONE_BY_ONE[name.removeprefix("_foreach_")], *args, **options)
        if name == "full":
            return args[1].to(dtype).expand(args[0]).clone()
        if name == "scalar_tensor":
            return args[0].to(dtype)
        return _cast(_ONE_BY_ONE[name], dtype, *args, **options)

    return compute


def can_be_in_tensors(node: fx.Node) -> bool:
    """Whether there is such a function."""
    name = schema_of(node.target).name.removeprefix("aten::") if isinstance(node.target, OpOverload) else ""
    return name.removeprefix("_foreach_") in _ONE_BY_ONE or name in ("full", "scalar_tensor")


def _each(one: Callable[..., Tensor], tensors: list[Tensor], *rest: Any, **options: Any) -> list[Tensor]:
    results = []
    for place, tensor in enumerate(tensors):
        args = [value[place] if isinstance(value, (list, tuple)) else value for value in rest]
        results.append(_cast(one, tensor.dtype, tensor, *args, **options))
    return results


def _cast(one: Callable[..., Tensor], dtype: torch.dtype, *args: Any, **options: Any) -> Tensor:
    """Numbers in the precision that a kernel would convert them to, and the result in the dtype that it gives."""
    dtypes = [a.dtype for a in args if isinstance(a, Tensor) and a.dtype.is_floating_point and a.dim()]
    wide = torch.float64 if torch.float64 in [*dtypes, dtype] else torch.float32

    def number(value: Any) -> Any:
        is_number = isinstance(value, Tensor) and not value.dim() and value.dtype == torch.float64
        return value.to(wide) if is_number else value

    made = one(*[number(a) for a in args], **{k: number(v) for k, v in options.items()})
    return made if made.dtype == dtype else made.to(dtype)


def _lerp(start: Tensor, end: Tensor, weight: Any) -> Tensor:
    """The nearer end is where it starts from, as in torch's kernel."""
    gap = end - start
    return torch.where(abs(weight) < 0.5, start + weight * gap, end - gap * (1 - weight))


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    x = x if low is None else torch.maximum(x, _like(low, x))
    return x if high is None else torch.minimum(x, _like(high, x))


def _like(value: Any, x: Tensor) -> Tensor:
    return value.to(x.dtype) if isinstance(value, Tensor) else torch.full_like(x, value)


def _divide(x: Any, y: Any, rounding_mode: str | None = None) -> Tensor:
    """By a number: times its inverse, as eager does on a GPU, since divisions take several times as long."""
    is_by_number = isinstance(y, Tensor) and not y.dim() and x.dim() > 0 and x.dtype.is_floating_point
    if is_by_number and rounding_mode is None:
        return x * (1 / y)
    return torch.div(x, y, rounding_mode=rounding_mode)


_ONE_BY_ONE: dict[str, Callable[..., Tensor]] = {
    "add": lambda x, y, alpha=1: x + y * alpha if isinstance(alpha, Tensor) or alpha != 1 else x + y,
    "sub": lambda x, y, alpha=1: x - y * alpha if isinstance(alpha, Tensor) or alpha != 1 else x - y,
    "rsub": lambda x, y, alpha=1: y - x * alpha if isinstance(alpha, Tensor) or alpha != 1 else y - x,
    "mul": lambda x, y: x * y,
    "div": _divide,
    "addcmul": lambda x, a, b, value=1: x + value * (a * b),
    "addcdiv": lambda x, a, b, value=1: x + value * (a / b),
    "lerp": _lerp,
    "pow": lambda x, y: x**y,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "clamp_max": lambda x, high: _clamp(x, None, high),
    "maximum": _clamp,
    "minimum": lambda x, high: _clamp(x, None, high),
    "fill": lambda x, value: value.to(x.dtype).expand(x.shape).clone(),
    "remainder": lambda x, y: torch.remainder(x, y),
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
}


def with_numbers(graph: fx.GraphModule, run: Runner) -> Runner:
    """Ops one by one, which take numbers, called with tensors."""
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    places = [place for place, n in enumerate(inputs) if is_varying(n.meta["spec"])]
    has_items = any(n.target is torch.ops.aten._local_scalar_dense.default for n in graph.graph.nodes)
    return Numbered(run, tuple(places)) if places or has_items else run


@dataclass(frozen=True, eq=False)
class Numbered:
    """A function that takes numbers at these places, called with tensors."""

    run: Runner
    places: tuple[int, ...]

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        given = list(values)
        for place in self.places:
            given[place] = given[place].item()
        results = self.run(*given)
        return tuple(torch.tensor(r, dtype=torch.float64) if isinstance(r, float) else r for r in results)


def with_tensors(graph: fx.GraphModule, run: Runner) -> Runner:
    """Code that takes tensors, called with numbers."""
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    numbers = [n for n in inputs if is_varying(n.meta["spec"])]
    if not numbers:
        return run
    mine = Numbers([n.meta["spec"].dtype for n in numbers])
    lines = [f"    tensors, {''.join(f'array_{d}, ' for d in mine.dtypes)}= mine.tensors, *mine.arrays\n"]
    for place, dtype in enumerate(mine.dtypes):
        lines.append(f"    array_{dtype}[:] = {''.join(f'{numbers[i].name}, ' for i in mine.places[place])}\n")
    results: Any = graph.graph.output_node().args[0]
    given = ", ".join(_given(n, numbers, n in results) for n in inputs)
    source = f"def numbered({', '.join(n.name for n in inputs)}):\n{''.join(lines)}    return run({given})\n"
    return load_source(source, {"mine": mine, "run": run}, "numbered")


def _given(node: fx.Node, numbers: list[fx.Node], is_returned: bool) -> str:
    if node not in numbers:
        return node.name
    return f"tensors[{numbers.index(node)}]{'.clone()' if is_returned else ''}"


class Numbers(threading.local):
    """Tensors without dimensions, made once for each thread, and the arrays that they lie in: to fill an array takes
    a tenth of the time that it takes to make the tensors."""

    def __init__(self, given: list[torch.dtype]) -> None:
        self.given = given
        kinds = list(dict.fromkeys(given))
        self.dtypes = [str(kind).removeprefix("torch.") for kind in kinds]
        self.places = [[place for place, dtype in enumerate(given) if dtype == kind] for kind in kinds]
        rows = [torch.zeros(len(places), dtype=kind) for places, kind in zip(self.places, kinds, strict=True)]
        self.arrays = [row.numpy() for row in rows]
        found = {
            place: one
            for places, row in zip(self.places, rows, strict=True)
            for place, one in zip(places, row.unbind(), strict=True)
        }
        self.tensors = [found[place] for place in range(len(given))]
