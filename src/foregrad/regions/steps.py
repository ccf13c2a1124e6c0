"""Steps: a graph as a sequence of ops that intervals can be cut from, and the exact form of an interval.

A step is an op together with what belongs to it: the items of its result, and results of the graph that are views of
it. Steps keep the order of the program, so that whatever is drawn or checked stays in its order. Views are no steps of
their own: an interval makes the views that it reads, so that what it takes and gives are the tensors below them.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import SizeSpec, Spec, in_order, symbols_in
from foregrad.program.dead_code import is_view


@dataclass(frozen=True, eq=False)
class Form:
    """An interval in full: two with the same key compute the same of their inputs."""

    key: tuple[Any, ...]
    inputs: tuple[fx.Node, ...]
    nodes: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]


class Steps:
    """The steps of a graph, what each looks like, and from where to where values live."""

    def __init__(self, graph: fx.Graph) -> None:
        self._numbers: dict[Any, int] = {}
        self.steps: list[list[fx.Node]] = []
        self.born: dict[fx.Node, int] = {}  # the step of each op, item and result; inputs have none
        self.reads: dict[fx.Node, list[fx.Node]] = {}  # arguments in order, as often as they stand there
        self.words: dict[fx.Node, int] = {}  # op, constants and what comes out: all but the arguments
        self.specs: dict[fx.Node, int] = {}
        self.views = {n for n in graph.nodes if is_view(n)}
        results: Any = graph.output_node().args[0]
        self.results = {r for r in results if isinstance(r, fx.Node)}
        sizes = [n for n in graph.nodes if n.op == "placeholder" and n.meta.get("role") == "size"]
        self.sizes = {repr(n.meta["spec"].size): n for n in sizes}  # that vary, by their names in code
        for node in graph.nodes:
            self.specs[node] = self._number(_spec_word(node.meta.get("spec")))
            if node.op == "call_function":
                self.reads[node] = []
                self.words[node] = self._number(_word(node, self.specs[node], self.reads[node]))
                self._place(node)
        self.last_read = self._last_reads(graph)
        self.labels = [self._label(step) for step in self.steps]

    def __len__(self) -> int:
        return len(self.steps)

    def _number(self, word: Any) -> int:
        return self._numbers.setdefault(word, len(self._numbers))

    def _place(self, node: fx.Node) -> None:
        if node in self.views and node not in self.results:
            return
        home = self._home(node)
        if home is None:
            home = len(self.steps)
            self.steps.append([])
        self.steps[home].append(node)
        self.born[node] = home

    def _home(self, node: fx.Node) -> int | None:
        """The step that a node belongs to, if it is not one of its own."""
        if node.target is operator.getitem and node not in self.views:
            return self.born[self.reads[node][0]]
        if node not in self.views:
            return None
        born = [self.born[root] for root in self.roots(node) if root in self.born]
        return max(born, default=None)

    def roots(self, node: fx.Node) -> list[fx.Node]:
        """The tensors below a view, or the node itself."""
        found, stack = [], [node]
        while stack:
            here = stack.pop()
            if here in self.views:
                stack.extend(self.reads[here])
            else:
                found.append(here)
        return found

    def _last_reads(self, graph: fx.Graph) -> dict[fx.Node, int]:
        """The last step that reads a value, itself or through views."""
        last: dict[fx.Node, int] = {}
        for node in reversed(graph.nodes):
            here = max(last.get(node, -1), self.born.get(node, -1)) if node in self.views else self.born.get(node, -1)
            for read in self.reads.get(node, ()):
                last[read] = max(last.get(read, -1), here)
        return last

    def _label(self, step: list[fx.Node]) -> int:
        """What a step looks like by itself: where its arguments come from is left to the form of an interval."""
        return self._number(
            tuple((self.words[n], n in self.results, *(self.specs[a] for a in self.reads[n])) for n in step)
        )

    def set_apart(self, places: Iterable[int]) -> None:
        """Let steps look like no other."""
        for place in places:
            self.labels[place] = -1 - place

    def form(self, start: int, stop: int, given: Set[fx.Node] = frozenset(), made: Iterable[fx.Node] = ()) -> Form:
        """The steps from `start` up to `stop`, which take the views `given` and give the views `made`."""
        writing = _Writing(self, given)
        for step in self.steps[start:stop]:
            for node in step:
                writing.add(node)
        own = [n for n in writing.nodes if start <= self.born.get(n, -1) < stop]
        outputs = [n for n in own if n in self.results or (n not in self.views and self.last_read.get(n, -1) >= stop)]
        for view in made:
            writing.read(view)
            outputs.append(view)
        writing.read_sizes()
        key = (*writing.key, *(writing.numbers[n] for n in outputs))
        return Form(key, tuple(writing.inputs), tuple(writing.nodes), tuple(outputs))


class _Writing:
    """The form of an interval as it is written down, each view just before its first reader."""

    def __init__(self, steps: Steps, given: Set[fx.Node]) -> None:
        self.steps, self.given = steps, given
        self.numbers: dict[fx.Node, int] = {}
        self.key: list[Any] = []
        self.inputs: list[fx.Node] = []
        self.nodes: list[fx.Node] = []

    def add(self, node: fx.Node) -> None:
        if node in self.numbers:
            return  # a view that was made for an earlier reader
        reads = self.steps.reads[node]
        for read in reads:
            if read not in self.numbers:
                self.read(read)
        self._write(node, (self.steps.words[node], *[self.numbers[r] for r in reads]))
        self.nodes.append(node)

    def read(self, node: fx.Node) -> None:
        """Have a value at hand: make a view of what is there, take anything else from outside."""
        stack = [node]
        while stack:
            here = stack[-1]
            if here in self.numbers:
                stack.pop()
            elif here in self.steps.views and here not in self.given:
                missing = [r for r in self.steps.reads[here] if r not in self.numbers]
                stack.extend(missing)
                if not missing:
                    self.add(here)
            else:
                self._write(here, ("input", self.steps.specs[here]))
                self.inputs.append(here)

    def read_sizes(self) -> None:
        """Take the sizes that vary in what is read and made: compiled code asks no tensor for them."""
        specs = [node.meta.get("spec") for node in self.numbers]
        names = {repr(size): size for spec in specs for size in symbols_in(spec)}
        for size in sorted(names.values(), key=in_order):
            if repr(size) in self.steps.sizes:
                self.read(self.steps.sizes[repr(size)])

    def _write(self, node: fx.Node, line: tuple[Any, ...]) -> None:
        self.numbers[node] = len(self.numbers)
        self.key.append(line)


def _word(node: fx.Node, spec: int, reads: list[fx.Node]) -> Any:
    """A node without its arguments, which are put into `reads`."""
    kwargs = tuple((name, _constant(value, reads)) for name, value in node.kwargs.items())
    return node.target, _constant(node.args, reads), kwargs, spec, bool(node.meta.get("grad_enabled", True))


_IS_ITSELF = (int, bool, str, type(None), torch.dtype, torch.layout, torch.device, torch.memory_format)


def _constant(value: Any, reads: list[fx.Node]) -> Any:
    """A constant so that equal means the same: `1`, `1.0` and `True` differ, and so do `0.0` and `-0.0`."""
    if isinstance(value, fx.Node):
        reads.append(value)
        return fx.Node
    if isinstance(value, (list, tuple)):
        return (isinstance(value, list), *[_constant(v, reads) for v in value])
    if isinstance(value, float):
        return float, value.hex()
    if isinstance(value, complex):
        return complex, value.real.hex(), value.imag.hex()
    return type(value), value if isinstance(value, _IS_ITSELF) else id(value)


def _spec_word(spec: Spec | None) -> Any:
    if spec is None:
        return None
    size = spec.size if isinstance(spec, SizeSpec) else None
    return type(spec), spec.shape, spec.stride, spec.dtype, spec.device, size
