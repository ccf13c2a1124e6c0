"""Pieces: a forward graph, cut where Python has asked for a value.

all = aten.all(mask)                    piece 0        all = aten.all(mask)       answer 0 = all: true
mul = aten.mul(x, 2)     becomes
return (mul, all)                       the rest       mul = aten.mul(x, 2)

A piece computes what the next answer depends on and no earlier piece has; the rest is computed once all answers are
known. Nothing is computed twice: what is needed later is passed on. A random op brings all earlier ones along.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from foregrad.core.errors import CaptureError
from foregrad.core.spec import NumberSpec, Spec
from foregrad.functionalize.redraw import rng_state
from foregrad.program.dead_code import is_draw, is_view, maker_of, op_of
from foregrad.program.program import Program
from foregrad.record.impure import effect_of
from foregrad.record.questions import SIZES, Question, bytes_of
from foregrad.torch_private.fx_graph import lazy_graph_module


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a forward graph, and the questions that its values answer."""

    graph: fx.GraphModule
    inputs: tuple[str, ...]  # inputs of the forward graph, and values of earlier pieces
    outputs: tuple[str, ...]  # values that are asked about or needed later
    asks: tuple[tuple[Question, tuple[str, ...]], ...]  # each with the values that it is about
    draws: bool
    sizes_are_asked: bool  # so that it must be run op by op: nobody knows how large its results will be

    @property
    def ops(self) -> list[fx.Node]:
        return [node for node in self.graph.graph.nodes if node.op == "call_function"]

    @property
    def num_ops(self) -> int:
        return len(self.ops)

    @cached_property
    def wanted(self) -> tuple[int, ...]:
        """Which of its ops give its outputs."""
        place = {node: i for i, node in enumerate(self.ops)}
        results: Any = self.graph.graph.output_node().args[0]
        return tuple(place[node] for node in results)

    @cached_property
    def look(self) -> str:
        """What it computes of what: the same for all paths that begin alike."""
        names: dict[fx.Node, str] = {}
        lines: list[str] = []
        for node in self.graph.graph.nodes:
            names[node] = f"%{len(names)}"
            if node.op == "placeholder":
                lines.append(str(node.meta.get("spec")))
            elif node.op == "get_attr":
                lines.append(_constant_text(getattr(self.graph, str(node.target))))
            elif node.op == "call_function":
                args = fx.map_arg((node.args, node.kwargs), lambda n: _Named(names[n]))
                lines.append(f"{node.target!r} {args!r} {node.meta.get('grad_enabled')}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def giving(self, wanted: Sequence[int]) -> fx.GraphModule:
        """The graph with the results of these ops as its outputs."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        graph.graph_copy(self.graph.graph, copies)
        ops = self.ops
        graph.output(tuple(copies[ops[place]] for place in wanted))
        for node, copy in copies.items():
            copy.meta = dict(node.meta)
        held = {str(n.target): getattr(self.graph, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
        return lazy_graph_module(held, graph, "Ask")


@dataclass(frozen=True, eq=False)
class Pieces:
    """A forward graph in pieces. The outputs of the whole are named: values of pieces, or of the rest."""

    before: tuple[Piece, ...]
    rest: Piece
    outputs: tuple[str | None, ...]

    @property
    def passed_on(self) -> tuple[str, ...]:
        """Values of pieces that the rest takes, or that are outputs of the whole."""
        made = {name for piece in self.before for name in piece.outputs}
        return tuple(dict.fromkeys(n for n in (*self.rest.inputs, *self.outputs) if n is not None and n in made))


def cut(forward: fx.GraphModule, asks: Sequence[tuple[Question, tuple[int, ...]]]) -> Pieces:
    """Cut a forward graph; each question with the places of its values among the outputs."""
    return _Cutter(forward, asks).cut()


def asks_of(program: Program, outputs: Sequence[int]) -> list[tuple[Question, tuple[int, ...]]]:
    """The questions of a program, with the places of their values among these outputs of it."""
    places = iter([i for i, place in enumerate(outputs) if program.signature.outputs[place].role == "answer"])
    return [
        (question, tuple(next(places) for _ in (question.answer if question.kind == SIZES else (None,))))
        for question in program.calling.questions
    ]


class _Cutter:
    def __init__(self, forward: fx.GraphModule, asks: Sequence[tuple[Question, tuple[int, ...]]]) -> None:
        self.module = forward
        self.nodes: list[fx.Node] = list(forward.graph.nodes)
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.results: tuple[Any, ...] = tuple(forward.graph.output_node().args[0])  # type: ignore[arg-type]
        self.asks = [(question, tuple(self.results[place] for place in places)) for question, places in asks]
        self.asked_about = {place for _, places in asks for place in places}
        self.draws = [n for n in self.nodes if _moves(n)]
        self.placed: dict[fx.Node, int] = {}  # which piece a node belongs to
        self.groups: list[tuple[list[fx.Node], list[tuple[Question, tuple[fx.Node, ...]]], bool]] = []

    def cut(self) -> Pieces:
        for question, nodes in self.asks:
            if question.kind == SIZES:
                self._place_alone(question, nodes)
            else:
                self._place(self._slice(nodes), [(question, nodes)])
        rest = [n for n in self.nodes if n.op == "call_function" and n not in self.placed]
        self.groups.append((rest, [], False))
        self.placed |= dict.fromkeys(rest, len(self.groups) - 1)
        outputs = [None if place in self.asked_about else r for place, r in enumerate(self.results)]
        needed = {n for n in outputs if isinstance(n, fx.Node)}
        *before, last = [self._piece(number, needed) for number in range(len(self.groups))]
        names = tuple(n.name if isinstance(n, fx.Node) else None for n in outputs)
        return Pieces(tuple(before), last, names)

    # -- which node belongs where -----------------------------------------------------------------------

    def _place_alone(self, question: Question, nodes: tuple[fx.Node, ...]) -> None:
        """An op whose results have sizes that nobody knows before it has run: a piece of its own."""
        maker = maker_of(nodes[0])
        self._place(self._slice(maker.all_input_nodes), [])
        self._place(self._slice(nodes), [(question, nodes)], sizes_are_asked=True)

    def _place(
        self,
        nodes: list[fx.Node],
        asks: list[tuple[Question, tuple[fx.Node, ...]]],
        *,
        sizes_are_asked: bool = False,
    ) -> None:
        if nodes:
            self.placed |= dict.fromkeys(nodes, len(self.groups))
            self.groups.append((nodes, asks, sizes_are_asked))
        elif asks and self.groups:
            self.groups[-1][1].extend(asks)
        elif asks:
            self.groups.append(([], asks, False))

    def _slice(self, wanted: Iterable[fx.Node]) -> list[fx.Node]:
        """What values depend on and no piece has yet, in the order of the graph."""
        found: set[fx.Node] = set()
        stack = list(wanted)
        while stack:
            node = stack.pop()
            if node in found or node in self.placed or node.op != "call_function":
                continue
            self._check(node)
            found.add(node)
            stack += node.all_input_nodes
            stack += [
                user for user in node.users if user.target is operator.getitem and not isinstance(_spec(node), Spec)
            ]
            if _moves(node):
                stack += self.draws[: self.draws.index(node)]
        return sorted(found, key=self.order.__getitem__)

    def _check(self, node: fx.Node) -> None:
        func = op_of(node)
        if func is not None and effect_of(func) is not None:
            raise CaptureError(
                f"Python asks for a value that depends on {func}, which has effects beside its result.\n"
                f"  at {node.meta.get('origin')}\nAsk before it, or leave this part outside."
            )

    # -- graphs -------------------------------------------------------------------------------------------

    def _piece(self, number: int, results: set[fx.Node]) -> Piece:
        nodes, asks, sizes_are_asked = self.groups[number]
        own = self._with_again(nodes, number)
        asked = [n for _, values in asks for n in values]
        wanted = [*asked, *(n for n in nodes if n in results or self._is_needed_after(n, number))]
        outputs = [n for n in dict.fromkeys(wanted) if self.placed.get(n) == number]
        taken = {n for node in own for n in node.all_input_nodes if n not in own and n.op != "get_attr"}
        if number == len(self.groups) - 1:
            outputs = [n for n in self.nodes if n in results and self.placed.get(n) == number]
        inputs = sorted(taken, key=self.order.__getitem__)
        return Piece(
            graph=self._extract(f"Ask{number}", inputs, own, outputs),
            inputs=tuple(n.name for n in inputs),
            outputs=tuple(n.name for n in outputs),
            asks=tuple((question, tuple(n.name for n in values)) for question, values in asks),
            draws=any(map(_moves, nodes)),
            sizes_are_asked=sizes_are_asked,
        )

    def _is_needed_after(self, node: fx.Node, number: int) -> bool:
        """Whether a later piece takes a value: itself, or through what is made again there."""
        if _is_made_again(node):
            return False
        stack = list(node.users)
        while stack:
            user = stack.pop()
            if self.placed.get(user, -1) > number:
                return True
            stack += user.users if _is_made_again(user) else ()
        return False

    def _with_again(self, nodes: list[fx.Node], number: int) -> list[fx.Node]:
        """Nodes with numbers and lists of tensors of earlier pieces that they take, which are made again."""
        found, stack = set(nodes), list(nodes)
        while stack:
            for node in stack.pop().all_input_nodes:
                if node not in found and _is_made_again(node) and self.placed.get(node, number) < number:
                    found.add(node)
                    stack.append(node)
        return sorted(found, key=self.order.__getitem__)

    def _extract(self, title: str, inputs: list[fx.Node], own: list[fx.Node], outputs: list[fx.Node]) -> fx.GraphModule:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        constants = {n for node in own for n in node.all_input_nodes if n.op == "get_attr"}
        for node in sorted({*own, *constants}, key=self.order.__getitem__):
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(copies[n] for n in outputs))
        held = {str(n.target): getattr(self.module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
        return lazy_graph_module(held, graph, title)


class _Named(str):
    """The name of a value, in the text of what is computed from it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


#: Constants of so many bytes are told from others by what they hold, larger ones by which they are.
_FEW_BYTES = 1 << 16


def _constant_text(value: Any) -> str:
    if isinstance(value, torch.Tensor) and value.numel() * value.itemsize <= _FEW_BYTES:
        return f"{Spec.of(value)} {bytes_of(value).hex()}"
    return f"the {type(value).__name__} {id(value)}"


def _spec(node: fx.Node) -> Any:
    return node.meta.get("spec")


def _moves(node: fx.Node) -> bool:
    """Whether a node draws, or looks where a generator is: that happens in the order of the graph."""
    return node.op == "call_function" and (node.target is rng_state or is_draw(node))


def _is_made_again(node: fx.Node) -> bool:
    """Whether a value is made again where it is needed: a number, and a list of views."""
    if node.op != "call_function":
        return False
    return isinstance(_spec(node), NumberSpec) or (is_view(node) and _spec(node) is None)
