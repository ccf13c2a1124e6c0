"""Marks: which values of the forward backward computes again, and which it finds saved.

A value without a mark is saved if backward needs it. One that is marked is computed again where backward first needs
it, from what its op takes: values that are marked too, saved ones, inputs. So exactly what is marked is recomputed.
Views are made again in any case. The marks are torch's own: a `CheckpointPolicy` as `node.meta["recompute"]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from foregrad.core.errors import ProgramError
from foregrad.functionalize.redraw import rng_state
from foregrad.program.dead_code import has_effect, is_draw, is_view, maker_of, memory_of
from foregrad.record.ops import Origin
from foregrad.torch_private.fx_graph import lazy_graph_module

MARK = "recompute"
MARK_WORDS = {
    CheckpointPolicy.MUST_SAVE: "save",
    CheckpointPolicy.PREFER_SAVE: "prefer save",
    CheckpointPolicy.MUST_RECOMPUTE: "recompute",
    CheckpointPolicy.PREFER_RECOMPUTE: "prefer recompute",
}
_MUST = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE)
_RECOMPUTE = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)

#: Names of values, or a function of a node that says whether it is meant.
Which = str | Iterable[str] | Callable[[fx.Node], bool]


def copied(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of a program's graph, whose nodes can be marked."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    constants = {str(n.target): getattr(module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    return lazy_graph_module(constants, graph, "Program")


def has_marks(graph: fx.Graph) -> bool:
    """Whether any value is marked."""
    return any(node.meta.get(MARK) is not None for node in graph.nodes)


def marked(module: fx.GraphModule, which: Which, policy: CheckpointPolicy, phase: int) -> fx.GraphModule:
    """A copy of a graph with a mark at some values, of those that come no later than a phase."""
    made = copied(module)
    for node in _meant(made.graph, which, phase):
        _mark(maker_of(node), policy)  # an op is marked, and with it all of its results
    return made


def marked_alike(module: fx.GraphModule, first: fx.Graph, phase: int) -> fx.GraphModule:
    """A copy of a graph in which values up to a phase have the marks that they have in another one."""
    marks = {n.meta["key"]: n.meta[MARK] for n in first.nodes if MARK in n.meta and _is_of_an_op(n)}
    made = copied(module)
    for node in made.graph.nodes:
        if node.op == "call_function" and node.meta.get("phase", 0) <= phase:
            node.meta[MARK] = marks.get(node.meta.get("key"))
    return made


def _is_of_an_op(node: fx.Node) -> bool:
    """Whether a value comes from an op of the recording, by whose number it is known in any program of that."""
    first: Any = node.meta.get("key", (-1,))[0]
    return isinstance(first, int) and first >= 0


def _meant(graph: fx.Graph, which: Which, phase: int) -> list[fx.Node]:
    nodes = {n.name: n for n in graph.nodes if n.op == "call_function" and n.meta.get("phase", 0) <= phase}
    if callable(which):
        return [n for n in nodes.values() if which(n) and not is_view(n) and n.target is not rng_state]
    names = [which] if isinstance(which, str) else list(which)
    missing = [name for name in names if name not in nodes]
    if missing and phase == 0:  # a program of a later backward may not have all that the first one has
        raise ProgramError(
            f"the forward computes no {', '.join(missing)}.\nThe names of values stand at the left of the listing."
        )
    return [nodes[name] for name in names if name in nodes]


def _mark(node: fx.Node, policy: CheckpointPolicy) -> None:
    before = node.meta.get(MARK)
    if before in _MUST and policy in _MUST and before != policy:
        raise ProgramError(f"{node.name} is marked to {MARK_WORDS[before]} and to {MARK_WORDS[policy]}.\n{where(node)}")
    if before not in _MUST or policy in _MUST:
        node.meta[MARK] = policy


def is_recomputed(node: fx.Node) -> bool:
    """Whether the half that needs a value of an earlier one computes it again."""
    op = maker_of(node)
    return op.meta.get(MARK) in _RECOMPUTE and why_not(op) is None


def why_not(op: fx.Node) -> str | None:
    """Why the results of an op cannot be computed again, whatever it is marked as; None if they can."""
    is_drawn = is_draw(op)
    if (has_effect(op) and not is_drawn) or op.target is rng_state:
        return "running it a second time is not the same"
    if is_drawn and _device(op).type != "cpu":
        return f"it is drawn on {_device(op)}, and only states of the CPU's generators are kept"
    written = [a.name for a in map(memory_of, op.all_input_nodes) if a.meta.get("is_written")]
    return f"it is computed from {written[0]}, which the call writes to" if written else None


def _device(op: fx.Node) -> torch.device:
    specs = [n.meta.get("spec") for n in (op, *op.users)]
    return next((spec.device for spec in specs if spec is not None), torch.device("cpu"))


def broken_marks(graph: fx.Graph) -> Iterable[str]:
    """What is wrong with the marks of a graph."""
    for node in graph.nodes:
        mark = node.meta.get(MARK)
        if mark is not None and mark not in MARK_WORDS:
            yield f"{node.name} has the mark {mark}"
        elif mark is CheckpointPolicy.MUST_RECOMPUTE and (why := why_not(node)) is not None:
            yield f"{node.name} cannot be recomputed: {why}; {where(node)}"


def mark_text(node: fx.Node) -> str:
    """A mark in the listing, with the reason if it is not followed; empty if there is none."""
    mark = node.meta.get(MARK)
    why = why_not(node) if mark is CheckpointPolicy.PREFER_RECOMPUTE else None
    return "" if mark is None else MARK_WORDS.get(mark, str(mark)) + (f", but saved: {why}" if why else "")


def where(node: fx.Node) -> str:
    """The user's line of an op, as a line of an error."""
    origin: Any = node.meta.get("origin")
    return f"  at {origin}" if isinstance(origin, Origin) else "  at an unknown line"
