"""Donation: the forward graph writes the new contents of inputs itself, so that no second copy of them is made.

mul = aten.mul(w, 0.9)                  mul = aten.mul(w, 0.9)
return (loss, mul)        becomes       copy_ = aten.copy_(w, mul)
                                        return (loss,)

For programs whose results nobody differentiates: a value that forward keeps must not change, and what is differentiated
takes all of its inputs. A write comes as soon as nothing reads the old contents any more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.functionalize.effects import GoOn, Write
from foregrad.program.dead_code import checks_only, is_view
from foregrad.program.program import Program
from foregrad.record.trace import TracedInput
from foregrad.torch_private.fx_graph import lazy_graph_module

aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Donation:
    """A forward graph that writes to its inputs, and what of the program it takes, gives and writes."""

    graph: fx.GraphModule
    inputs: tuple[int, ...]  # inputs of the program that the graph takes
    outputs: tuple[int, ...]  # outputs of the program that the graph gives
    written: frozenset[int]  # outputs of the program that the graph writes in place


def donate(program: Program) -> Donation:
    """The forward half of a program, writing what it can in place."""
    halves, targets = program.halves, _targets(program)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    old: Any = halves.forward.graph
    placeholders = [n for n in old.nodes if n.op == "placeholder"]
    results: Any = old.output_node().args[0]
    values = {place: results[i] for i, place in enumerate(halves.outputs)}
    writes = {values[place]: placeholders[i] for place, i in targets.items()}
    needed = {n for n in placeholders if n.users or n in writes.values() or n.meta.get("role") == "size"}
    kept = [i for i, n in enumerate(placeholders) if n in needed or not targets]
    for i in kept:
        copies[placeholders[i]] = graph.placeholder(placeholders[i].name)
        copies[placeholders[i]].meta = dict(placeholders[i].meta)
    ready = _ready(old, writes)
    for node in old.nodes:
        if node.op in ("call_function", "get_attr"):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        for value in ready.get(node, ()):
            written = graph.call_function(aten.copy_.default, (copies[writes[value]], copies[value]))
            written.meta = {**value.meta, "spec": writes[value].meta["spec"]}
    outputs = tuple(place for place in halves.outputs if place not in targets)
    graph.output(tuple(copies.get(values[place]) for place in outputs) + _rest(results, halves.outputs, copies))
    constants = {str(n.target): getattr(halves.forward, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    made = lazy_graph_module(constants, graph, "Forward")
    return Donation(made, tuple(halves.inputs[i] for i in kept), outputs, frozenset(targets))


def _rest(results: Any, outputs: tuple[int, ...], copies: dict[fx.Node, fx.Node]) -> tuple[Any, ...]:
    return tuple(copies[r] if isinstance(r, fx.Node) else None for r in results[len(outputs) :])


def _targets(program: Program) -> dict[int, int]:
    """Outputs that are the new contents of a whole input with memory of its own; the place of that input."""
    calling, halves = program.calling, program.halves
    if halves.saved or halves.kept or calling.live:
        return {}
    if any(isinstance(step, GoOn) for step in calling.effects.steps):
        return {}  # a graph outside, which the call goes on through, has saved inputs as they are
    if any(checks_only(n) for n in halves.forward.graph.nodes):
        return {}  # where a check fails nothing may have been written, so that the function can run in its place
    lifted = {i.alias.object: place for place, i in enumerate(_given(program)) if isinstance(i, TracedInput)}
    storages = [i.alias.storage for i in calling.effects.inputs.values()]
    found: dict[int, int] = {}
    taken: set[Any] = set()
    results: Any = halves.forward.graph.output_node().args[0]
    for step in calling.effects.steps:
        known = calling.effects.inputs.get(step.target)
        if not isinstance(step, Write) or step.how in ("grad", "leaf") or known is None or step.target not in lifted:
            continue
        place = calling.aliases[step.alias]
        value = results[halves.outputs.index(place)]
        is_whole = step.alias.geometry == known.alias.geometry and not known.alias.bits and known.base is None
        is_alone = storages.count(known.alias.storage) == 1 and not known.is_grown
        if is_whole and is_alone and value not in taken and known.alias.spec.is_dense:
            found[place] = lifted[step.target]
            taken.add(value)
    return found


def _given(program: Program) -> list[Any]:
    return [program.calling.inputs[i] for i in program.halves.inputs]


def _ready(graph: Any, writes: dict[fx.Node, fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """After which node each value can be written to its input."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    nodes = list(graph.nodes)
    last: dict[fx.Node, int] = {}
    for node in reversed(nodes):
        for read in node.all_input_nodes if node.op != "output" else ():
            here = max(order[node], last.get(node, 0)) if is_view(node) else order[node]
            last[read] = max(last.get(read, 0), here)
    found: dict[fx.Node, list[fx.Node]] = {}
    for value, target in writes.items():
        at = max(order[value], last.get(target, 0))
        found.setdefault(nodes[at], []).append(value)
    return found
