"""Solve: the present value of what was recorded, computed from the real arguments while the function still runs.

What was recorded so far is made pure, as it is in the end, and of that only what a value depends on is run, each op
once. Nothing of the caller's is written, and generators are as they were.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx

from foregrad.core.default_generator import generator_as_it_was
from foregrad.functionalize.functionalize import Functionalizer
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import rng_state
from foregrad.record.freeze import PartialTrace, freeze_so_far
from foregrad.record.generators import identity
from foregrad.record.impure import draws, effect_of
from foregrad.record.ops import Alias, Op, Storage, aliases_in, aliases_read
from foregrad.record.questions import NotAtHand
from foregrad.record.recording import Recording
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import TracedInput
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, autocast_disabled, exclude_keys
from foregrad.torch_private.ops import OpOverload


class Solver:
    """Solves for values of one recording. How a value is computed tells it from others, also once the capture is over;
    the values themselves are kept until then."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._numbers: dict[Hashable, int] = {}  # how a value is computed, by the numbers of what it is computed from
        self._values: dict[int, Any] = {}
        self._last: tuple[Any, tuple[_Pure, list[fx.Node]]] | None = None  # what was asked last, and its graph
        self._states: dict[int, torch.Tensor] = {}  # of each generator, after what was drawn so far

    def let_go(self) -> None:
        """Forget all values: the real arguments are let go of, too."""
        self._last = None
        self._values.clear()
        self._states.clear()

    def identify(self, aliases: Sequence[Alias]) -> list[Hashable]:
        """A number for how each alias is computed."""
        graph, nodes = self._graph(aliases)
        return [graph.numbers[node] for node in nodes]

    def solve(self, aliases: Sequence[Alias]) -> list[torch.Tensor]:
        """What each alias holds now."""
        graph, nodes = self._graph(aliases)
        needed = _ancestors(nodes)
        with exclude_keys(BELOW_AUTOGRAD), autocast_disabled(), self._generators(graph, needed):
            for node in graph.nodes:
                number = graph.numbers[node]
                if node in needed and number not in self._values:
                    self._values[number] = self._value(graph, node)
        return [self._values[graph.numbers[node]] for node in nodes]

    def _graph(self, aliases: Sequence[Alias]) -> tuple[_Pure, list[fx.Node]]:
        """Made once for who first identifies values, and then solves for them."""
        ops = self._recording.recorder.ops
        asked = (tuple(aliases), len(ops), ops[-1] if ops else None)
        if self._last is None or self._last[0] != asked:
            with generator_as_it_was():  # below torch's own code an op may be tried out on real tensors
                self._last = (asked, self._new_graph(aliases))
        return self._last[1]

    def _new_graph(self, aliases: Sequence[Alias]) -> tuple[_Pure, list[fx.Node]]:
        trace = freeze_so_far(self._recording)
        functional = Functionalizer(trace, self._recording.recorder.table)
        for one in trace.inputs:
            is_joined = one.alias.storage in trace.joined
            if one.base is None if is_joined else not one.is_hidden:  # as when a program is built
                functional.add_input(functional.inputs.add(one.role, one.name, one.spec, one), one.alias)
        given = {one.alias.storage for one in trace.inputs}
        for storage, root in trace.roots.items():
            if storage.kind == "input" and storage not in given:  # a gradient that arrives in a backward
                functional.add_input(
                    functional.inputs.add("tangent", f"tangent_{storage.index}", root.spec, None), root
                )
        for storage, real in trace.constants.items():
            root = trace.roots[storage]
            functional.add_input(functional.inputs.constant(real, root.spec), root)
        functional.add_ops(_slice(trace, aliases))
        nodes = [functional.read(alias) for alias in aliases]
        return _Pure(functional, self._numbers), nodes

    def _value(self, graph: _Pure, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._given(graph.given[node])
        if node.op == "get_attr":
            return graph.constants[str(node.target)]
        func: Any = node.target
        if isinstance(func, OpOverload) and effect_of(func) is not None:
            raise NotAtHand
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: self._values[graph.numbers[n]])
        return func(*args, **kwargs)

    def _given(self, given: Any) -> Any:
        if isinstance(given, Expression):
            return given.value
        for lifted in self._recording.inputs.all if isinstance(given, TracedInput) else ():
            if lifted.alias is given.alias and lifted.real is not None and lifted.real.device.type == "cpu":
                return lifted.real.detach()
        raise NotAtHand

    @contextmanager
    def _generators(self, graph: _Pure, needed: set[fx.Node]) -> Iterator[None]:
        """Generators as they will be when a call comes to what is drawn next, and as they are now afterwards."""
        new = [n for n in needed if graph.numbers[n] not in self._values and _draws(n)]
        if not new:
            yield
            return
        entry = self._recording.recorder.draws.entry_states
        with ExitStack() as stack:
            own = {identity(one): one for _, one in self._recording.recorder.generators.all}
            default = identity(torch.default_generator)
            own[default] = stack.enter_context(generator_as_it_was())
            for key, state in entry.items():
                if key != default:
                    stack.callback(own[key].set_state, own[key].get_state())
                own[key].set_state(self._states.get(key, state))
            yield
            self._states = {key: own[key].get_state() for key in entry}


class _Pure:
    """What was recorded so far as a pure graph, with a number for how each node is computed."""

    def __init__(self, functional: Functionalizer, numbers: dict[Hashable, int]) -> None:
        self.nodes = list(functional.graph.nodes)
        self.constants = functional.inputs.constants
        placeholders = [n for n in self.nodes if n.op == "placeholder"]
        self.given = dict(zip(placeholders, functional.inputs.given, strict=True))
        self.numbers: dict[fx.Node, int] = {}
        for node in self.nodes:
            self.numbers[node] = numbers.setdefault(self._look(node), len(numbers))

    def _look(self, node: fx.Node) -> Hashable:
        if node.op == "placeholder":
            given: Any = self.given[node]
            return ("input", given.alias.object if isinstance(given, TracedInput) else given or node.name)
        if node.op == "get_attr":
            return ("constant", id(self.constants[str(node.target)]))
        args = fx.map_arg((node.args, node.kwargs), lambda n: _Number(self.numbers[n]))
        drawn = node.meta["key"] if _draws(node) else None
        return (node.target, repr(args), drawn)


class _Number(int):
    """The number of a value, in the text of what is computed from it."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def _draws(node: fx.Node) -> bool:
    func: Any = node.target.op if isinstance(node.target, Pure) else node.target
    is_op = node.op == "call_function" and isinstance(func, OpOverload)
    return node.target is rng_state or (is_op and draws(func, node.args, node.kwargs))


def _ancestors(nodes: Sequence[fx.Node]) -> set[fx.Node]:
    """What nodes depend on, and themselves; with a draw, all earlier ones, which move the generator."""
    if not nodes:
        return set()
    drawn = [n for n in nodes[0].graph.nodes if _draws(n)]
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += node.all_input_nodes
            if node in drawn:
                stack += drawn[: drawn.index(node)]
    return found


def _slice(trace: PartialTrace, aliases: Sequence[Alias]) -> list[Op]:
    """The ops on which the contents of these storages depend, and, with one that draws, all earlier ones that do."""
    wanted: set[Storage] = {alias.storage for alias in aliases}
    found: list[Op] = []
    has_draws = False
    for op in reversed(trace.ops):
        storages = {alias.storage for alias in (*aliases_in(op.outputs), *op.writes)}
        is_draw = draws(op.func, op.args, op.kwargs) if isinstance(op.func, OpOverload) else False
        if storages.isdisjoint(wanted) and not (is_draw and has_draws):
            continue
        found.append(op)
        has_draws |= is_draw
        wanted |= {alias.storage for alias in aliases_read((op.args, op.kwargs))} | storages
    return found[::-1]
