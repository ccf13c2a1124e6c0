"""Regions: a graph as calls of distinct subgraphs, of which there are few however deep a stack is.

region  label     nodes  calls
     0  blocks.*     10     25
     1  rest          2      1
        aten._fft_r2c runs by itself: complex numbers, first at model.py:12 in forward
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from foregrad.program.dead_code import is_view
from foregrad.regions.fallbacks import Fallback, together
from foregrad.regions.find import find_pieces
from foregrad.regions.steps import Form, Steps
from foregrad.torch_private.fx_graph import lazy_graph_module

WHOLE = "whole"  # the label of a region that is all there is
_FEW = 4


@dataclass(frozen=True, eq=False)
class Region:
    """One distinct subgraph: inputs that carry a spec, and a flat tuple of outputs."""

    graph: fx.GraphModule
    count: int  # how often it is called
    label: str  # for people
    fallbacks: tuple[Fallback, ...] = ()  # ops that were not compiled


@dataclass(frozen=True, eq=False)
class RegionCall:
    """A call of a region on values of the graph, by name; `nodes` are the ops that it stands for."""

    region: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Regions:
    """The calls in order; a call takes `inputs`, `constants` and outputs of earlier calls."""

    distinct: tuple[Region, ...]
    calls: tuple[RegionCall, ...]
    inputs: tuple[str, ...]
    results: tuple[str | None, ...]
    constants: dict[str, torch.Tensor]

    def __str__(self) -> str:
        width = max([len("label"), *(len(r.label) for r in self.distinct)])
        lines = [f"region  {'label':{width}}  nodes  calls"]
        for number, region in enumerate(self.distinct):
            lines.append(f"{number:6}  {region.label:{width}}  {_num_nodes(region):5}  {region.count:5}")
            lines += [f"        {one}" for one in region.fallbacks]
        return "\n".join(lines)

    def with_fallbacks(self, fallbacks: Sequence[tuple[Fallback, ...]]) -> Regions:
        """The same, with the ops of each region that were not compiled."""
        pairs = zip(self.distinct, fallbacks, strict=True)
        return replace(self, distinct=tuple(replace(region, fallbacks=found) for region, found in pairs))


def region_notes(graph: fx.Graph, halves: Sequence[Regions]) -> dict[str, str]:
    """For the listing of a graph whose halves have regions: a note at the op where each call of one begins."""
    nodes = {n.name: n for n in graph.nodes}
    notes: dict[str, str] = {}
    for regions in halves:
        done: Counter[int] = Counter()
        for call in regions.calls if len(regions.calls) > 1 and nodes.keys() >= {*regions.calls[0].nodes} else ():
            done[call.region] += 1
            region = regions.distinct[call.region]
            own = [n for n in call.nodes if n in nodes]  # writes to inputs are no ops of the program
            if not own:
                continue
            begin = nodes[next((n for n in own if not is_view(nodes[n])), own[0])]
            while is_view(begin.prev) and begin.prev.name in call.nodes:
                begin = begin.prev
            times = f", {done[call.region]} of {region.count}" if region.count > 1 else ""
            notes[begin.name] = f"region {call.region}: {region.label}{times}"
    return notes


def find_regions(half: fx.GraphModule, is_apart: Callable[[fx.Node], bool] = lambda _: False) -> Regions:
    """The distinct regions of a graph and how they are called; one region where nothing repeats that is worth it.

    A few ops that are apart, such as a fused optimizer, are no part of what repeats, nor are the writes that follow.
    """
    steps = Steps(half.graph)
    places = _apart(steps, is_apart)
    if len(places) <= _FEW:
        steps.set_apart([place for start, stop in places for place in range(start, stop)])
    return _regions(half, find_pieces(steps))


def whole(half: fx.GraphModule) -> Regions:
    """The graph as one region."""
    steps = Steps(half.graph)
    return _regions(half, [steps.form(0, len(steps))])


def apart(half: fx.GraphModule, is_apart: Callable[[fx.Node], bool]) -> Regions:
    """The graph with some ops in regions of their own, each with the writes that follow it, and what lies between."""
    steps = Steps(half.graph)
    cuts = {0, len(steps), *(cut for place in _apart(steps, is_apart) for cut in place)}
    return _regions(half, [steps.form(start, stop) for start, stop in pairwise(sorted(cuts))])


def _apart(steps: Steps, is_apart: Callable[[fx.Node], bool]) -> list[tuple[int, int]]:
    """Where such an op stands, up to the end of the writes that follow it."""
    found = []
    for place, step in enumerate(steps.steps):
        if any(map(is_apart, step)):
            stop = place + 1
            while stop < len(steps) and steps.steps[stop][0].target is torch.ops.aten.copy_.default:
                stop += 1
            found.append((place, stop))
    return found


def _regions(half: fx.GraphModule, pieces: list[Form]) -> Regions:
    numbers: dict[Any, int] = {}
    places = [numbers.setdefault(form.key, len(numbers)) for form in pieces]
    occurrences: list[list[Form]] = [[] for _ in numbers]
    for place, form in zip(places, pieces, strict=True):
        occurrences[place].append(form)
    calls = tuple(
        RegionCall(p, _names(f.inputs), _names(f.outputs), _names(f.nodes)) for p, f in zip(places, pieces, strict=True)
    )
    return _cut(half, [_label(o, len(pieces)) for o in occurrences], calls)


def _cut(half: fx.GraphModule, labels: Sequence[str], calls: tuple[RegionCall, ...]) -> Regions:
    """The regions of these labels; what is called often is the graph of its first call."""
    graph, nodes = half.graph, {n.name: n for n in half.graph.nodes}
    counts = Counter(call.region for call in calls)
    first = {call.region: call for call in reversed(calls)}
    results: Any = graph.output_node().args[0]
    return Regions(
        distinct=tuple(Region(_extract(first[i], nodes), counts[i], label) for i, label in enumerate(labels)),
        calls=calls,
        inputs=tuple(n.name for n in graph.nodes if n.op == "placeholder"),
        results=tuple(r.name if isinstance(r, fx.Node) else None for r in results),
        constants={n.name: getattr(half, str(n.target)) for n in graph.nodes if n.op == "get_attr"},
    )


def regions_to_text(regions: Regions) -> str:
    """Where a graph was cut, as JSON: beside the graph it says all of its regions."""
    calls = [[call.region, call.inputs, call.outputs, call.nodes] for call in regions.calls]
    fallbacks = [[one.as_json() for one in region.fallbacks] for region in regions.distinct]
    return json.dumps([[region.label for region in regions.distinct], calls, fallbacks])


def regions_from_text(half: fx.GraphModule, text: str) -> Regions:
    """The regions of a graph that was cut so."""
    labels, calls, fallbacks = json.loads(text)
    found = _cut(half, labels, tuple(RegionCall(place, *map(tuple, names)) for place, *names in calls))
    return found.with_fallbacks(list(map(_fallbacks, fallbacks)))


def fallbacks_in(text: str) -> tuple[Fallback, ...]:
    """The ops of a graph that were not compiled; the graph is not needed for this."""
    _, calls, fallbacks = json.loads(text)
    return together(one for place, *_ in calls for one in _fallbacks(fallbacks[place]))


def _fallbacks(found: list[Any]) -> tuple[Fallback, ...]:
    return tuple(map(Fallback.from_json, found))


def _names(nodes: Sequence[fx.Node]) -> tuple[str, ...]:
    return tuple(n.name for n in nodes)


def _extract(call: RegionCall, nodes: dict[str, fx.Node]) -> fx.GraphModule:
    """What a call runs as a graph of its own."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in (nodes[name] for name in call.inputs):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in (nodes[name] for name in call.nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[nodes[name]] for name in call.outputs))
    return lazy_graph_module({}, graph, "Region")


def _label(occurrences: list[Form], num_calls: int) -> str:
    """The module that all ops of a region come from, with a star for the index that varies: `blocks.*`."""
    if num_calls == 1:
        return WHOLE
    paths = {
        tuple(o.module.split(".")) for f in occurrences for n in f.nodes if (o := n.meta.get("origin")) and o.module
    }
    if not paths:
        return "rest" if len(occurrences) == 1 else "repeat"
    shared = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            shared += ["*"] if all(p.isdigit() for p in parts) else []
            break
        shared.append(parts[0])
    return ".".join(shared) or ("rest" if len(occurrences) == 1 else "repeat")


def _num_nodes(region: Region) -> int:
    return sum(n.op == "call_function" for n in region.graph.graph.nodes)
