"""Split: a program in two halves, and what the first keeps for the second."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from foregrad.core.signature import Signature
from foregrad.core.spec import Spec
from foregrad.functionalize.redraw import Redraw, state_before
from foregrad.program.dead_code import clean, is_draw, is_view, memory_of
from foregrad.program.recompute_marks import copied, has_marks, is_recomputed
from foregrad.torch_private.fx_graph import lazy_graph_module


@dataclass(frozen=True)
class Saved:
    """A value kept from forward to backward, and where it comes from."""

    name: str
    spec: Spec
    key: Any  # identifies the value in every program made from the same recording
    source: str  # "input", "output" (also a result of the forward), "value", or "kept" by an earlier stage
    place: int  # of the input, or of the output, or of the saved value at the end of the forward's outputs


@dataclass(frozen=True)
class Halves:
    """`forward(inputs) -> (*outputs, *values)` and `backward(*saved, *numbers, *tangents) -> (*gradients, *writes)`."""

    forward: fx.GraphModule
    backward: fx.GraphModule
    inputs: tuple[int, ...]  # which inputs of the program the forward takes
    kept: tuple[Saved, ...]  # what the forward itself needs from earlier stages, after its inputs
    outputs: tuple[int, ...]  # which outputs of the program the forward gives
    saved: tuple[Saved, ...]  # tensors that backward takes first
    numbers: tuple[int, ...]  # which inputs of the program backward takes next: sizes that vary, which forward has too
    tangents: tuple[int, ...]  # which inputs of the program (tangents, live ones) backward takes next
    gradients: tuple[int, ...]  # which outputs of the program backward gives
    read_again: frozenset[str]  # names of saved values that ops read which backward runs again


@dataclass(frozen=True)
class _Half:
    """The nodes of a half, and the values that it takes."""

    own: set[fx.Node]
    earlier: set[fx.Node]  # of an earlier half, made again inside: views, and what is marked
    boundary: list[fx.Node]


def split(module: fx.GraphModule, signature: Signature, first_phase: int = 0) -> Halves:
    """Cut where the phase changes, saving what backward needs."""
    return _Splitter(module, signature, first_phase).split()


class _Splitter:
    def __init__(self, module: fx.GraphModule, signature: Signature, first_phase: int) -> None:
        self.module = module
        self.first = first_phase
        self.graph = copied(module).graph if has_marks(module.graph) else module.graph
        drawn = [n for n in self.graph.nodes if is_draw(n) and is_recomputed(n)]
        self.states = {n: state_before(n) for n in drawn}
        self.order = {n: i for i, n in enumerate(self.graph.nodes)}
        self.placeholders = [n for n in self.graph.nodes if n.op == "placeholder"]
        results: Any = self.graph.output_node().args[0]
        is_late = [o.role in ("grad", "write in backward") for o in signature.outputs]
        self.forward_places = [i for i, late in enumerate(is_late) if not late]
        self.backward_places = [i for i, late in enumerate(is_late) if late]
        self.forward_outputs = [results[i] for i in self.forward_places]
        self.backward_outputs = [results[i] for i in self.backward_places]
        self.given_out = {  # what is asked about stays with nobody
            results[i]: place
            for place, i in enumerate(self.forward_places)
            if isinstance(results[i], fx.Node) and signature.outputs[i].role != "answer"
        }

    def split(self) -> Halves:
        late = [n for n in self.placeholders if self._is_late(n)]
        is_late = set(late)
        backward = self._half(self._is_late, self.backward_outputs)
        numbers = [n for n in backward.boundary if n.meta.get("role") == "number"]
        boundary = [n for n in backward.boundary if n not in is_late and n not in numbers]
        numbers += [n for n in self.placeholders if n.meta.get("role") == "size" and n not in numbers]
        values = [
            n for n in boundary if n.op != "placeholder" and self._phase(n) == self.first and n not in self.given_out
        ]
        forward = self._half(
            lambda n: self._phase(n) == self.first and n.op != "placeholder", [*self.forward_outputs, *values]
        )
        inputs = [n for n in self.placeholders if self._is_given(n) and n not in is_late]
        known = {*inputs, *forward.own, *forward.earlier}
        kept = [n for n in dict.fromkeys([*forward.boundary, *boundary]) if n not in known]
        kept.sort(key=self.order.__getitem__)
        place = {n: i for i, n in enumerate(self.placeholders)}
        return Halves(
            forward=self._extract("Forward", [*inputs, *kept], forward, [*self.forward_outputs, *values]),
            backward=self._extract("Backward", [*boundary, *numbers, *late], backward, self.backward_outputs),
            inputs=tuple(place[n] for n in inputs),
            kept=tuple(self._describe(n, "kept", i) for i, n in enumerate(kept)),
            outputs=tuple(self.forward_places),
            saved=self._saved(boundary, inputs, kept, values),
            numbers=tuple(place[n] for n in numbers),
            tangents=tuple(place[n] for n in late),
            gradients=tuple(self.backward_places),
            read_again=frozenset(
                memory_of(read).name for n in backward.earlier if not is_view(n) for read in n.all_input_nodes
            ),
        )

    def _phase(self, node: fx.Node) -> int:
        return int(node.meta.get("phase", 0))

    def _is_given(self, node: fx.Node) -> bool:
        return self._phase(node) == self.first or node.meta.get("role") in ("number", "size")

    def _is_late(self, node: fx.Node) -> bool:
        return self._phase(node) > self.first or node.meta.get("role") == "live"

    def _half(self, is_inside: Any, outputs: list[Any]) -> _Half:
        """A half; views of what it takes are made again inside, and so is what is marked."""
        own, earlier, boundary = set[fx.Node](), set[fx.Node](), set[fx.Node]()
        stack = [n for n in self.graph.nodes if n.op == "call_function" and is_inside(n)]
        stack += [o for o in outputs if isinstance(o, fx.Node)]
        while stack:
            node = stack.pop()
            if node in own or node in earlier or node in boundary:
                continue
            if node.op == "call_function" and is_inside(node):
                own.add(node)
            elif node.op == "get_attr" or is_view(node) or is_recomputed(node):
                earlier.add(node)
                stack.extend([self.states[node]] if node in self.states else [])
            else:
                boundary.add(node)
                continue
            stack.extend(node.all_input_nodes)
        return _Half(own, earlier, sorted(boundary, key=self.order.__getitem__))

    def _in_order(self, half: _Half) -> list[fx.Node]:
        """The nodes of a half in the order of the program, but what is computed again right before it is needed."""
        if all(is_view(n) or n.op == "get_attr" for n in half.earlier):
            return sorted(half.own | half.earlier, key=self.order.__getitem__)
        placed: dict[fx.Node, None] = {}
        for node in [*sorted(half.own, key=self.order.__getitem__), *sorted(half.earlier, key=self.order.__getitem__)]:
            needed, stack = {node}, [node]
            while stack:
                found = half.earlier.intersection(stack.pop().all_input_nodes) - needed
                stack.extend(n for n in found if n not in placed)
                needed |= found
            placed.update(dict.fromkeys(sorted(needed, key=self.order.__getitem__)))
        return list(placed)

    def _saved(
        self, boundary: list[fx.Node], inputs: list[fx.Node], kept: list[fx.Node], values: list[fx.Node]
    ) -> tuple[Saved, ...]:
        homes = {"value": values, "kept": kept, "input": inputs}
        found = {node: ("output", place) for node, place in self.given_out.items()}
        found |= {node: (source, place) for source, nodes in homes.items() for place, node in enumerate(nodes)}
        return tuple(self._describe(node, *found[node]) for node in boundary)

    def _describe(self, node: fx.Node, source: str, place: int) -> Saved:
        key = node.meta.get("key") or node.meta.get("tangent") or ("input", node.name)
        return Saved(node.name, node.meta["spec"], key, source, place)

    def _extract(self, title: str, inputs: list[fx.Node], half: _Half, outputs: list[Any]) -> fx.GraphModule:
        """A graph of its own with these inputs, nodes and outputs."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in self._in_order(half):
            copies[node] = graph.node_copy(node, lambda n: copies[n])
            copies[node].meta["is_again"] = node in half.earlier and is_recomputed(node)
            if node in half.earlier and node in self.states:
                copies[node].target = Redraw(node.target)  # type: ignore[arg-type]
                copies[node].args = (copies[self.states[node]], *copies[node].args)
        graph.output(tuple(copies[o] if isinstance(o, fx.Node) else None for o in outputs))
        clean(graph)
        names = [str(n.target) for n in graph.nodes if n.op == "get_attr"]
        constants = {name: getattr(self.module, name) for name in names}
        return lazy_graph_module(constants, graph, title)
