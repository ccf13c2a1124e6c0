"""Results that a graph made itself are as new, whatever kernel wrote to them: their version counters stand at 0."""

from __future__ import annotations

from typing import Any

from torch import fx

from foregrad.program.clean import is_view
from foregrad.substrate import reset_versions


def fresh_results(graph: fx.GraphModule) -> tuple[int, ...]:
    """The places of results that are no inputs, and no views of these."""
    results: Any = graph.graph.output_node().args[0]
    return tuple(p for p, r in enumerate(results) if isinstance(r, fx.Node) and _root(r).op == "call_function")


def make_new(results: tuple[Any, ...], places: tuple[int, ...]) -> tuple[Any, ...]:
    """Set the counters of the results at these places back."""
    reset_versions([results[place] for place in places])
    return results


def _root(node: fx.Node) -> fx.Node:
    while is_view(node):
        node = node.all_input_nodes[0]
    return node
