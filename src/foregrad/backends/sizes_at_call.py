"""Sizes at a call: what values of a graph look like in a call, where sizes vary, from the sizes that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from foregrad.core.generated import load_source
from foregrad.core.spec import SizeSpec, Spec, symbols_in

#: From the values of a graph's inputs: shapes and strides.
Looks = Callable[..., tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]


def looks_at(graph: fx.GraphModule, specs: Sequence[Spec]) -> Looks | None:
    """A function of a graph's inputs that gives the shapes and strides of values; None where none of them vary."""
    if not any(map(symbols_in, specs)):
        return None
    found = "".join(f"({spec.shape!r}, {spec.stride!r}), " for spec in specs)
    return _at_call(graph, f"({found})", dict.fromkeys(repr(symbol) for spec in specs for symbol in symbols_in(spec)))


def holding(graph: fx.GraphModule, conditions: Sequence[str]) -> Callable[..., bool]:
    """A function of a graph's inputs that says whether conditions on sizes hold."""
    sizes = [n.meta["spec"].size for n in graph.graph.nodes if n.op == "placeholder" and _is_dimension(n)]
    return _at_call(graph, " and ".join(conditions), dict.fromkeys(map(repr, sizes)))


@dataclass(frozen=True, eq=False)
class WhereItHolds:
    """Code for sizes that some conditions hold for, and what is run for others."""

    run: Callable[..., Any]
    holds: Callable[..., bool]
    otherwise: Callable[..., Any]

    def __call__(self, *inputs: Any) -> Any:
        return self.run(*inputs) if self.holds(*inputs) else self.otherwise(*inputs)


def _is_dimension(node: fx.Node) -> bool:
    """Whether an input is the size of one dimension."""
    spec = node.meta["spec"]
    return (
        isinstance(spec, SizeSpec) and spec.size is not None and [repr(spec.size)] == list(map(repr, spec.size.symbols))
    )


def _at_call(graph: fx.GraphModule, text: str, names: Iterable[str]) -> Any:
    """What a text says, as a function of the graph's inputs, of which some are the sizes of these names."""
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    given = {repr(n.meta["spec"].size): n.name for n in inputs if _is_dimension(n)}
    lines = "".join(f"    {name} = {given[name]}\n" for name in names)
    taken = ", ".join(n.name for n in inputs)
    return load_source(f"def at_call({taken}):\n{lines}    return {text}\n", {}, "at_call")
