"""Build a program from a recording: inputs in, ops in order, outputs and gradients out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx

from foregrad.core.signature import Input, Output, Signature, identifier
from foregrad.core.size import VARYING, Formula, Size
from foregrad.core.spec import NumberSpec, Spec, TokenSpec
from foregrad.functionalize.effects import Attach, Effects, Ref, Write, siblings
from foregrad.functionalize.functionalize import Functionalizer
from foregrad.functionalize.plan_effects import plan_effects
from foregrad.functionalize.version_counters import Counters
from foregrad.program.dead_code import clean, copied, memory_of, take_over
from foregrad.program.effect_chains import link
from foregrad.program.program import Calling, Program
from foregrad.program.version_checks import Checks
from foregrad.program.wrapper_edges import gradient_names, part_names, wrapping_of
from foregrad.record.lift.declared_state import StateStore
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.recording import Backward, Recording
from foregrad.record.results import Base, Results, joined_storages, written_storages
from foregrad.record.saved_tensors import DeadEnd, Survey
from foregrad.record.symbols.data_values import ItemOf
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import Alias
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.tensors import view_base

aten = torch.ops.aten
_LONGEST_NAME = 60


@dataclass(frozen=True)
class Stage:
    """What one program covers of a recording.

    The first stage is the forward and its backward. The stage after it has that backward as its own forward, and the
    backward of the backward as its backward; it finds the values of earlier phases kept for it.
    """

    recording: Recording
    results: Results
    inputs: tuple[Lifted | Outer, ...]  # those that get a gradient
    slots: tuple[Any, ...]  # where gradients arrive: for each of `inputs`, then for tangents of earlier stages
    sources: tuple[torch.Tensor, ...]  # where the backward starts
    backward: Backward | None
    survey: Survey | None = None  # of what lies between the two
    phase: int = 0
    earlier: Backward | None = None
    stored: tuple[StateStore, ...] = ()  # what the function puts into modules and declared state
    grads: tuple[tuple[Any, Any], ...] = ()  # which tensors get which .grad; an `OuterRef` for those that wrap others
    live: frozenset[int] = frozenset()  # inputs that an earlier program of the recording reads as backward finds them

    @property
    def retained(self) -> tuple[torch.Tensor, ...]:
        """Tensors, no leaves, that can be seen after the call and keep their gradient."""
        escaping = {id(t) for t in self.results.escaping}
        return tuple(t for t, _ in self.recording.intercept.retained if id(t) in escaping)


@dataclass
class _Builder:
    stage: Stage
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    nodes: list[fx.Node | None] = field(default_factory=list)
    given_out: set[fx.Node] = field(default_factory=set)
    lifted: list[Lifted | Expression | Size | Formula | None] = field(default_factory=list)
    objects: list[int | None] = field(default_factory=list)
    places: dict[Alias, int] = field(default_factory=dict)
    used_names: set[str] = field(default_factory=set)
    last_input: fx.Node | None = None
    constants: dict[str, torch.Tensor | torch.Generator] = field(default_factory=dict)
    homes: dict[fx.Node, tuple[int, Alias]] = field(default_factory=dict)
    numbers: dict[Expression | Size | Formula, fx.Node] = field(default_factory=dict)
    generators: dict[torch.Generator, fx.Node] = field(default_factory=dict)

    def build(self, name: str) -> Program:
        stage, recording = self.stage, self.stage.recording
        last = stage.backward or stage.earlier
        ops = last.ops if last else tuple(recording.recorder.ops[: recording.num_forward])
        self.effects = plan_effects(recording, stage.results)
        self.functional = Functionalizer(ops, recording.recorder.table, recording.recorder.device.true)
        self.functional.number, self.functional.generator = self._number, self._generator
        self.functional.has_sizes = recording.sizes is not None
        self.forward_writes, self.joined = written_storages(recording), joined_storages(recording)
        changed = [*(a for op in ops for a in op.writes), *(op.renames for op in ops if op.renames is not None)]
        self.written = {alias.storage for alias in changed}
        self._add_inputs()
        self._add_constants()
        self.functional.add_ops(ops[: recording.num_forward])
        self.functional.phase = 0
        if stage.phase == 0:
            self._add_results()
        self._find_homes()
        live = self._add_backward(ops)
        checks = self._checks()
        graph = self._finish()
        calling = self._calling(live, checks)
        ends = link(graph.graph)
        signature = Signature((*self.inputs, *ends.inputs), (*self.outputs, *ends.outputs))
        return Program(name, graph, signature, calling.with_ends(ends), stage.phase)

    # -- in ---------------------------------------------------------------------------------------------

    def _add_inputs(self) -> None:
        order = {"param": 0, "buffer": 1, "state": 2, "closure": 2}
        for lifted in sorted(self.stage.recording.inputs.all, key=lambda lifted: order.get(lifted.role, 3)):
            is_joined = lifted.alias.storage in self.joined
            if lifted.base is not None and is_joined:
                continue  # read from its base
            if lifted.is_hidden and not is_joined:
                continue  # its views are inputs of their own
            self._input(lifted.role, lifted.name, lifted.spec, lifted.alias, lifted)

    def _number(self, number: Expression | Size | Formula) -> fx.Node:
        """The input that brings a number."""
        if number not in self.numbers:
            spec = NumberSpec.of(number.value)
            assert isinstance(spec, NumberSpec)
            text = str(number) if isinstance(number, VARYING) else number.text
            self.numbers[number] = self._input("number", _short(text), spec, None, number)
        return self.numbers[number]

    def _input(
        self, role: str, name: str, spec: Spec, alias: Alias | None, lifted: Lifted | Expression | Size | Formula | None
    ) -> fx.Node:
        graph = self.functional.graph
        with graph.inserting_after(self.last_input) if self.last_input is not None else graph.inserting_before():
            node = self.last_input = graph.placeholder(self._unique(identifier(name)))
        node.meta.update(spec=spec, phase=0, role=role, is_written=alias is not None and alias.storage in self.written)
        self.inputs.append(Input(role, name, spec))
        self.lifted.append(lifted)
        if alias is not None:
            self.functional.add_input(node, alias)
        return node

    def _unique(self, name: str) -> str:
        number, unique = 1, name
        while unique in self.used_names:
            unique, number = f"{name}_{number}", number + 1
        self.used_names.add(unique)
        return unique

    def _add_constants(self) -> None:
        for storage, real in self.stage.recording.recorder.constants.items():
            name = f"constant_{len(self.constants)}"
            self.constants[name] = real
            node = self.functional.graph.get_attr(name)
            node.meta.update(phase=0, spec=storage.root.spec)
            self.functional.add_input(node, storage.root)

    def _generator(self, generator: torch.Generator) -> fx.Node:
        """The constant that is a generator of the user's."""
        if generator not in self.generators:
            name = self._unique(identifier(self.stage.recording.recorder.generators.drawn[generator]))
            self.constants[name] = generator
            with self.functional.graph.inserting_before(next(iter(self.functional.graph.nodes))):
                node = self.generators[generator] = self.functional.graph.get_attr(name)
            node.meta.update(phase=0, spec=TokenSpec.make(), generator=generator)
        return self.generators[generator]

    # -- out --------------------------------------------------------------------------------------------

    def _add_results(self) -> None:
        others = siblings(self.effects)
        for number, base in self.effects.returned.items():
            if number in others:
                continue
            node = self.functional.read_in_place(base.alias)
            self._output("output", self._result_name(number, base), base.alias.spec, node, number)
        for step in self.effects.steps:
            if isinstance(step, (Write, Attach)) and step.alias not in self.places:
                self.places[step.alias] = len(self.outputs)
                node = self.functional.read(step.alias)
                self._output("write", self._object_name(step.target), step.alias.spec, node, step.target)

    def _output(self, role: str, name: str, spec: Spec | None, node: fx.Node | None, number: int | None) -> None:
        is_result = role in ("output", "write") and number is not None
        if node is not None and is_result and (node in self.given_out or _is_given(node)):
            node = copied(node, self.functional.emit)  # each result is a tensor of its own
        self.outputs.append(Output(role, name, spec))
        self.nodes.append(node)
        if node is not None:
            self.given_out.add(node)
        self.objects.append(number)

    def _result_name(self, number: int, base: Base) -> str:
        places = [
            str(i)
            for i, o in enumerate(self.stage.recording.outputs)
            if isinstance(o, torch.Tensor) and (o is base.ghost or view_base(o) is base.ghost)
        ]
        places += part_names(self.stage.recording, self.stage.grads, base.ghost)
        recorder = self.stage.recording.recorder
        owners = [
            recorder.alias(t).object for t, g in self.stage.grads if g is base.ghost and isinstance(t, torch.Tensor)
        ]
        places += [f"{self._object_name(owner)}.grad" for owner in owners]
        return ",".join(places) or f"object {number}"

    def _object_name(self, number: int) -> str:
        lifted = self.effects.inputs.get(number)
        return lifted.name if lifted is not None else f"object {number}"

    def _find_homes(self) -> None:
        """Values that lie in the memory of an input or of a result once the call is over: there autograd saves them."""
        written = {base.alias.storage: base for base in self.effects.returned.values()}
        targets = {s.target: s for s in self.effects.steps if isinstance(s, Write)}
        storages = {self.effects.inputs[n].alias.storage: n for n in targets if n in self.effects.inputs}
        for node, alias in self.functional.current().items():
            number = storages.get(alias.storage)
            if number is not None and self.stage.results.renames.get(number) is None and not alias.bits:
                if alias.dtype == self.effects.inputs[number].spec.dtype and node.op == "call_function":
                    self.homes[node] = (number, alias)
            elif alias.storage in written and alias.storage in self.forward_writes and node.op == "call_function":
                base = written[alias.storage]
                if alias.dtype == base.alias.dtype and not alias.bits:
                    self.homes[node] = (base.alias.object, alias)

    # -- backward ---------------------------------------------------------------------------------------

    def _add_backward(self, ops: tuple[Any, ...]) -> list[int]:
        backward, recording = self.stage.backward, self.stage.recording
        earlier, functional = self.stage.earlier, self.functional
        functional.phase = 1
        live = self._add_live(ops[recording.num_forward :])
        if earlier is not None:
            for backward_before in earlier.chain:
                self._add_tangents(backward_before)
            functional.add_ops(ops[recording.num_forward : len(earlier.ops)])
            functional.phase = earlier.phase
            for place, alias in enumerate(earlier.aliases):
                node = None if alias is None else functional.read(alias)
                self._output("output", str(place), alias.spec if alias else None, node, None)
        if backward is None or backward.error is not None:
            return live
        functional.phase = backward.phase
        self._add_tangents(backward)
        functional.add_ops(ops[backward.start :])
        functional.phase = backward.phase
        self._add_gradients(backward)
        for number in self._written_in_backward(ops):
            alias = self.effects.inputs[number].alias
            self._output("write in backward", self._object_name(number), alias.spec, functional.read(alias), number)
        return live

    def _add_live(self, ops: tuple[Any, ...]) -> list[int]:
        """Inputs that backward reads or writes as it finds them."""
        recorder = self.stage.recording.recorder
        storages = {a.storage for op in ops for a in op.writes if a.storage.kind == "input"} | recorder.live
        live = []
        for number, lifted in self.effects.inputs.items():
            if (lifted.alias.storage in storages or number in self.stage.live) and lifted.base is None:
                node = self._input("live", self._object_name(number), lifted.spec, None, lifted)
                self.functional.replace_contents(node, lifted.alias)
                live.append(number)
        return live

    def _written_in_backward(self, ops: tuple[Any, ...]) -> list[int]:
        later = ops[self.stage.recording.num_forward :]
        storages = {a.storage for op in later for a in op.writes if a.storage.kind == "input"}
        inputs = self.effects.inputs.items()
        return [number for number, lifted in inputs if lifted.alias.storage in storages and lifted.base is None]

    def _add_tangents(self, backward: Backward) -> None:
        for place, tangent in enumerate(backward.tangents):
            if tangent is not None:
                node = self._input("tangent", self._tangent_name(place, backward), tangent.spec, tangent.alias, None)
                node.meta["phase"] = backward.phase
                node.meta["tangent"] = ("tangent", backward.phase, place)

    def _tangent_name(self, place: int, backward: Backward) -> str:
        if backward.phase > 1:
            return f"tangent{backward.phase}_{place}"
        base = [b for b in self.stage.results.bases if b.needs_tangent][place]
        number = base.alias.object
        known = number in self.effects.inputs
        return "tangent_" + (self._object_name(number) if known else self._result_name(number, base))

    def _add_gradients(self, backward: Backward) -> None:
        names = [lifted.name for lifted in self.stage.inputs]
        names += [f"tangent {place}" for place in range(len(backward.arrived) - len(names))]
        for name, alias in zip(gradient_names(names, backward.wholes), backward.aliases, strict=True):
            node = None if alias is None else self.functional.read(alias)
            self._output("grad", name, None if alias is None else alias.spec, node, None)

    # -- done -------------------------------------------------------------------------------------------

    def _finish(self) -> fx.GraphModule:
        graph = self.functional.graph
        graph.output(tuple(self.nodes))
        take_over(graph)
        clean(graph)
        graph.lint()
        return lazy_graph_module(self.constants, graph, "Program")

    def _calling(self, live: list[int], checks: Checks) -> Calling:
        recording, effects = self.stage.recording, self.effects
        recorder = recording.recorder
        results = tuple(
            ItemOf(recorder.alias(o)) if place in recording.items else _refer(o, recorder)
            for place, o in enumerate(recording.outputs)
        )
        moved = self.functional.offset_sensitive
        sensitive = {number for number, lifted in effects.inputs.items() if lifted.alias.storage in moved}
        homes = {node.name: home for node, home in self.homes.items()}
        old_grads = replaced_grads(recording, effects, self._unread())
        sensitive |= {
            n for n, a in homes.values() if n in effects.inputs and a.geometry != effects.inputs[n].alias.geometry
        }
        return Calling(
            homes=homes,
            replaced_grads=old_grads,
            inputs=tuple(self.lifted),
            outputs=tuple(self.objects),
            gradients=self.stage.inputs,
            tangents=tuple(b.alias.object for b in self.stage.results.bases if b.needs_tangent),
            aliases=self.places,
            effects=effects,
            results=results,
            structure=recording.structure,
            leaves_grad_mode=recording.leaves_grad_mode,
            live=tuple(live),
            backward_error=self.stage.backward.error if self.stage.backward else None,
            offset_sensitive=frozenset(sensitive),
            grads=tuple((_refer(t, recorder), _refer(g, recorder)) for t, g in self.stage.grads),
            retained=tuple(dict.fromkeys(recorder.alias(t).object for t in self.stage.retained)),
            checks=checks,
            wrapping=wrapping_of(recording, self.stage.backward),
            stored=tuple(replace(s, value=_refer(s.value, recorder)) for s in self.stage.stored),
        )

    def _unread(self) -> set[int]:
        """Objects that are inputs which the graph neither reads nor gives out."""
        nodes = [n for n in self.functional.graph.nodes if n.op == "placeholder"]
        idle = [given for node, given in zip(nodes, self.lifted, strict=True) if not node.users]
        return {given.alias.object for given in idle if isinstance(given, Lifted)}

    def _checks(self) -> Checks:
        stage, effects = self.stage, self.effects
        counters = Counters(stage.recording, stage.results.renames)
        seen = [lifted.alias.object for lifted in self.lifted if isinstance(lifted, Lifted)]
        seen += [number for number in (*effects.returned, *effects.early) if number not in seen]
        readers: dict[str, set[int]] = {}
        for node, number in self.functional.reads:
            readers.setdefault(memory_of(node).name, set()).add(counters.of(number))
        return Checks(
            holders={effects.counters[number]: number for number in reversed(seen)},
            counters=effects.counters,
            readers=readers,
            saved=frozenset(map(counters.of, stage.survey.saved)) if stage.survey else frozenset(),
            dead_ends=tuple(
                None if end is None else DeadEnd(frozenset(map(counters.of, end.saved)), end.error)
                for end in (stage.survey.dead_ends if stage.survey else ())
            ),
        )


def build(stage: Stage, name: str) -> Program:
    return _Builder(stage).build(name)


def _is_given(node: fx.Node) -> bool:
    """Whether a value lies in memory that was there before the program ran."""
    return memory_of(node).op in ("placeholder", "get_attr")


def replaced_grads(recording: Recording, effects: Effects, unread: set[int]) -> dict[int, int]:
    """Inputs whose .grad is replaced and read by nobody, and the object that it is on entry."""
    alias = recording.recorder.alias
    seen = {alias(t).object for t in recording.results} | {step.target for step in effects.steps}
    found: dict[int, int] = {}
    for lifted, grad in recording.grads.assumed():
        if not isinstance(lifted, Lifted) or not isinstance(grad, Lifted) or lifted.ghost.grad is grad.ghost:
            continue
        if grad.alias.object in unread - seen and grad.base is None and not grad.is_argument and not grad.is_hidden:
            found[lifted.alias.object] = grad.alias.object
    return found if len(set(found.values())) == len(found) else {}


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."


def _refer(value: Any, recorder: Any) -> Any:
    """A value to store with `Ref`s for its tensors."""
    if recorder.sizes is not None and recorder.sizes.varies(value):
        return recorder.sizes.plain(value)
    if isinstance(value, torch.Tensor):
        return Ref(recorder.alias(value).object) if recorder.knows(value) else value
    if isinstance(value, dict):
        return {k: _refer(v, recorder) for k, v in value.items()}
    return type(value)(_refer(v, recorder) for v in value) if type(value) in (list, tuple) else value
