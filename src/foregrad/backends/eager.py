"""The `eager` backend: a graph as straight-line Python, op by op, bitwise equal to eager PyTorch.

    def forward(x, w):
        mul = aten.mul.Tensor(x, w); del x
        sin = aten.sin.default(mul); del mul
        return (sin,)

Every value is dropped after its last use. Ops are called through torch's own Python functions where these are shown to
reach exactly the same op, since that is faster than going through the op object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import fx

from foregrad.core.generated import load_source
from foregrad.core.spec import NumberSpec
from foregrad.record.impure import is_random
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, TorchDispatchMode, autocast_disabled, exclude_keys
from foregrad.torch_private.ops import FUNCTION_HOMES, OpOverload, overload_name, schema_of


def compile_graph(module: fx.GraphModule, name: str) -> Callable[..., tuple[Any, ...]]:
    """A function of the graph's inputs that runs its ops one by one."""
    from foregrad.passes.in_place import in_place  # which needs all that a recording needs

    source, namespace = graph_source(in_place(module), name)
    return load_source(source, namespace, name)


def graph_source(module: fx.GraphModule, name: str) -> tuple[str, dict[str, Any]]:
    """The source of a graph, and the objects that its names stand for."""
    graph = module.graph
    names = UniqueNames({n.name for n in graph.nodes})
    last_use = _last_uses(graph)
    lines: list[str] = []
    is_again = False
    inputs = [n.name for n in graph.nodes if n.op == "placeholder"]
    for node in graph.nodes:
        if node.op == "get_attr":
            is_again = False
            lines.append(f"{node.name} = {names.of('constant', getattr(module, str(node.target)))}")
        elif node.op == "call_function":
            was_again, is_again = is_again, bool(node.meta.get("is_again"))
            if is_again and not was_again:  # its casts are in the graph
                lines.append(f"with {names.of('autocast_disabled', autocast_disabled)}():")
            lines.append(f"{'    ' if is_again else ''}{node.name} = {_call(node, names)}")
        dead = [n.name for n in last_use.get(node, ())]
        if dead and lines:
            lines[-1] += f"; del {', '.join(dead)}"
    results: Any = graph.output_node().args[0]
    returned = "".join(f"{r.name if isinstance(r, fx.Node) else r}, " for r in results)
    lines.append(f"return ({returned})")
    body = "".join(f"    {line}\n" for line in lines)
    return f"def {name}({', '.join(inputs)}):\n{body}", names.namespace


class UniqueNames:
    """Names for functions and constants, apart from the names of values."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken
        self._by_id: dict[int, str] = {}
        self.namespace: dict[str, Any] = {}

    def of(self, hint: str, value: Any) -> str:
        """The name of a function or a constant."""
        found = self._by_id.get(id(value))
        if found is None:
            found = self._by_id[id(value)] = self.fresh(hint)
            self.namespace[found] = value
        return found

    def fresh(self, hint: str) -> str:
        """A name that nothing has."""
        while hint in self._taken or hint in self.namespace:
            hint += "_"
        self._taken.add(hint)
        return hint


def _last_uses(graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the values that nothing after it uses."""
    dies: dict[fx.Node, list[fx.Node]] = {}
    seen: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        for used in (*node.all_input_nodes, node):
            if used not in seen and used.op != "output":
                seen.add(used)
                if node.op == "call_function":
                    dies.setdefault(node, []).append(used)
    return dies


def _call(node: fx.Node, names: UniqueNames) -> str:
    if node.target is operator.getitem:
        return f"{_text(node.args[0], names)}[{node.args[1]}]"
    function: Any = node.target
    if function in ASKS_GRAD_MODE:
        function = InGradMode(function, bool(node.meta.get("grad_enabled", True)))
    elif isinstance(function, OpOverload):
        function = fast_function(function, _pattern(node)) or function
    args = [_text(a, names) for a in node.args]
    args += [f"{k}={_text(v, names)}" for k, v in node.kwargs.items()]
    return f"{names.of(_hint(node.target), function)}({', '.join(args)})"


#: Ops whose kernel computes otherwise when gradients are off, as they are inside an autograd function.
ASKS_GRAD_MODE = {torch.ops.aten.mkldnn_rnn_layer.default}


@dataclass(frozen=True)
class InGradMode:
    """An op that is called with gradients on or off."""

    func: OpOverload
    enabled: bool

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(self.enabled):
            return self.func(*args, **kwargs)


def _hint(target: Any) -> str:
    if isinstance(target, OpOverload):
        return f"{schema_of(target).name}_{overload_name(target)}".replace("::", "_").replace(".", "_")
    return str(target.__name__)


def _text(value: Any, names: UniqueNames) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        inside = ", ".join(_text(v, names) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside},)"
    if isinstance(value, (bool, int, str, type(None))):
        return repr(value)
    return names.of("k", value)


# -- faster ways to the same op ---------------------------------------------------------------------------


def _pattern(node: fx.Node) -> Any:
    """What the arguments of a call look like, as far as the choice of an overload depends on it."""

    def shape(value: Any) -> Any:
        if isinstance(value, fx.Node):
            spec = value.meta.get("spec")
            if isinstance(spec, NumberSpec):
                return "plain", float if spec.dtype == torch.float64 else int, None
            return None if spec is None else ("tensor", len(spec.shape), spec.dtype)
        if isinstance(value, (list, tuple)):
            return tuple(shape(v) for v in value)
        return ("plain", type(value), value if isinstance(value, (torch.dtype, torch.layout, type(None))) else None)

    names = tuple((k, shape(v)) for k, v in node.kwargs.items())
    return tuple(shape(a) for a in node.args), names


class _Watch(TorchDispatchMode):
    """Notes the first op that a call reaches, and stops it there."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[tuple[Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, args, kwargs or {}))
        raise _Reached


class _Reached(Exception):
    pass


@cache
def fast_function(func: OpOverload, pattern: Any) -> Any:
    """A function of torch that does nothing but call this op with the same arguments; None if none is found."""
    name = schema_of(func).name
    if not name.startswith("aten::") or is_random(func) or _has_unknown(pattern):
        return None
    args, kwargs = _example(pattern[0]), {k: _example(v) for k, v in pattern[1]}
    for home in FUNCTION_HOMES:
        candidate = getattr(home, name.removeprefix("aten::"), None)
        if candidate is not None and _reaches(candidate, func, args, kwargs):
            return candidate
    return None


def _has_unknown(pattern: Any) -> bool:
    if isinstance(pattern, tuple) and pattern and pattern[0] == "plain":
        return pattern[1] not in (int, float, bool, str, type(None), torch.dtype, torch.layout)
    return pattern is None or (
        isinstance(pattern, tuple) and any(_has_unknown(p) for p in pattern if isinstance(p, tuple) or p is None)
    )


def _example(pattern: Any) -> Any:
    if pattern and pattern[0] == "tensor":
        return torch.empty((2,) * pattern[1], dtype=pattern[2], device="cpu")
    if pattern and pattern[0] == "plain":
        return pattern[2] if pattern[2] is not None or pattern[1] is type(None) else pattern[1](1)
    return [_example(p) for p in pattern]


def _reaches(candidate: Any, func: OpOverload, args: Any, kwargs: Any) -> bool:
    watch = _Watch()
    try:
        with watch, exclude_keys(BELOW_AUTOGRAD), torch.no_grad():
            candidate(*args, **kwargs)
    except _Reached:
        reached, got_args, got_kwargs = watch.seen[0]
        return reached is func and _same(got_args, args, func) and _same_kwargs(got_kwargs, kwargs)
    except (TypeError, RuntimeError, ValueError, IndexError):
        return False
    return False


def _same(got: Any, given: Any, func: OpOverload) -> bool:
    """Whether the op got what the function was given; trailing defaults may be spelt out."""
    if len(got) < len(given):
        defaults = [a.default_value for a in schema_of(func).arguments]
        if any(_differs(g, d) for g, d in zip(given[len(got) :], defaults[len(got) :], strict=False)):
            return False
        given = given[: len(got)]
    return not any(_differs(a, b) for a, b in zip(got, given, strict=False)) and len(got) == len(given)


def _same_kwargs(got: dict[str, Any], given: dict[str, Any]) -> bool:
    return got.keys() == given.keys() and not any(_differs(got[k], given[k]) for k in got)


def _differs(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
        return a is not b
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) != len(b) or any(_differs(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is not type(b) or a != b
