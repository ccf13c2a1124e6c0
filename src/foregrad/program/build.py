"""Build a program from a trace: inputs in, ops in order, outputs and gradients out."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import fx

from foregrad.core.signature import Output, Signature
from foregrad.core.spec import Spec
from foregrad.core.wrapper_autograd import Whole
from foregrad.functionalize.effects import Attach, Write, siblings
from foregrad.functionalize.functionalize import Functionalizer
from foregrad.functionalize.plan_effects import plan_effects
from foregrad.functionalize.version_counters import Counters
from foregrad.program.dead_code import clean, copied, memory_of, take_over
from foregrad.program.effect_chains import link
from foregrad.program.program import Calling, Program
from foregrad.program.version_checks import Checks
from foregrad.record.ghosts.table import GhostTable
from foregrad.record.ops import Alias, Op
from foregrad.record.trace import DeadEnd, Trace, TracedBackward, TracedInput
from foregrad.torch_private.fx_graph import lazy_graph_module


@dataclass
class _Builder:
    trace: Trace
    table: GhostTable
    outputs: list[Output] = field(default_factory=list)
    nodes: list[fx.Node | None] = field(default_factory=list)
    given_out: set[fx.Node] = field(default_factory=set)
    objects: list[int | None] = field(default_factory=list)
    places: dict[Alias, int] = field(default_factory=dict)
    homes: dict[fx.Node, tuple[int, Alias]] = field(default_factory=dict)

    def build(self, name: str) -> Program:
        trace, ops = self.trace, self.trace.ops
        self.effects = plan_effects(trace, self.table)
        self.functional = Functionalizer(trace, self.table)
        self.inputs = self.functional.inputs
        self.forward_writes = {alias.storage for op in ops[: trace.num_forward] for alias in op.writes}
        changed = [*(a for op in ops for a in op.writes), *(op.renames for op in ops if op.renames is not None)]
        self.written = {alias.storage for alias in changed}
        self._add_inputs()
        self._add_constants()
        self.functional.add_ops(ops[: trace.num_forward])
        self.functional.phase = 0
        if trace.phase == 0:
            self._add_results()
        self._find_homes()
        live = self._add_backward()
        checks = self._checks()
        graph = self._finish()
        calling = self._calling(live, checks)
        ends = link(graph.graph)
        signature = Signature((*self.inputs.inputs, *ends.inputs), (*self.outputs, *ends.outputs))
        return Program(name, graph, signature, calling.with_ends(ends), trace.phase)

    # -- in ---------------------------------------------------------------------------------------------

    def _add_inputs(self) -> None:
        order = {"param": 0, "buffer": 1, "state": 2, "closure": 2}
        for lifted in sorted(self.trace.inputs, key=lambda lifted: order.get(lifted.role, 3)):
            is_joined = lifted.alias.storage in self.trace.joined
            if lifted.base is not None and is_joined:
                continue  # read from its base
            if lifted.is_hidden and not is_joined:
                continue  # its views are inputs of their own
            self._input(lifted.role, lifted.name, lifted.spec, lifted.alias, lifted)

    def _input(self, role: str, name: str, spec: Spec, alias: Alias, lifted: TracedInput | None) -> fx.Node:
        node = self.inputs.add(role, name, spec, lifted, is_written=alias.storage in self.written)
        self.functional.add_input(node, alias)
        return node

    def _add_constants(self) -> None:
        for storage, real in self.trace.constants.items():
            root = self.trace.roots[storage]
            self.functional.add_input(self.inputs.constant(real, root.spec), root)

    # -- out --------------------------------------------------------------------------------------------

    def _add_results(self) -> None:
        others = siblings(self.effects)
        for number, base in self.effects.returned.items():
            if number in others:
                continue
            node = self.functional.read_in_place(base.alias)
            self._output("output", base.name, base.alias.spec, node, number)
        for step in self.effects.steps:
            if isinstance(step, (Write, Attach)) and step.alias not in self.places:
                self.places[step.alias] = len(self.outputs)
                node = self.functional.read(step.alias)
                self._output("write", self._object_name(step.target), step.alias.spec, node, step.target)
        for question in self.trace.questions:
            for node in self.functional.result_nodes(self.trace.ops[question.op]):
                self._output("answer", question.text, node.meta["spec"], node, None)
        for call in self.trace.python_calls:
            for index in call.ops:
                (node,) = self.functional.result_nodes(self.trace.ops[index])
                self._output("python", call.name, node.meta["spec"], node, None)

    def _output(self, role: str, name: str, spec: Spec | None, node: fx.Node | None, number: int | None) -> None:
        is_result = role in ("output", "write") and number is not None
        if node is not None and is_result and (node in self.given_out or _is_given(node)):
            node = copied(node, self.functional.emit)  # each result is a tensor of its own
        self.outputs.append(Output(role, name, spec))
        self.nodes.append(node)
        if node is not None:
            self.given_out.add(node)
        self.objects.append(number)

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
            if number is not None and self.trace.renames.get(number) is None and not alias.bits:
                if alias.dtype == self.effects.inputs[number].spec.dtype and node.op == "call_function":
                    self.homes[node] = (number, alias)
            elif alias.storage in written and alias.storage in self.forward_writes and node.op == "call_function":
                base = written[alias.storage]
                if alias.dtype == base.alias.dtype and not alias.bits:
                    self.homes[node] = (base.alias.object, alias)

    # -- backward ---------------------------------------------------------------------------------------

    def _add_backward(self) -> list[int]:
        trace, functional = self.trace, self.functional
        functional.phase = 1
        live = self._add_live(trace.ops[trace.num_forward :])
        if trace.earlier:
            for backward_before in trace.earlier:
                self._add_tangents(backward_before)
            last = trace.earlier[-1]
            functional.add_ops(trace.ops[trace.num_forward : last.end])
            functional.phase = last.phase
            for place, alias in enumerate(last.gradients):
                node = None if alias is None else functional.read(alias)
                self._output("output", str(place), alias.spec if alias else None, node, None)
        backward = trace.backward
        if backward is None or backward.error is not None:
            return live
        functional.phase = backward.phase
        self._add_tangents(backward)
        functional.add_ops(trace.ops[backward.start :])
        functional.phase = backward.phase
        self._add_gradients(backward)
        for number in self._written_in_backward():
            alias = self.effects.inputs[number].alias
            self._output("write in backward", self._object_name(number), alias.spec, functional.read(alias), number)
        return live

    def _add_live(self, ops: tuple[Op, ...]) -> list[int]:
        """Inputs that backward reads or writes as it finds them."""
        storages = {a.storage for op in ops for a in op.writes if a.storage.kind == "input"} | self.trace.live
        live = []
        for number, lifted in self.effects.inputs.items():
            if (lifted.alias.storage in storages or number in self.trace.live_objects) and lifted.base is None:
                node = self.inputs.add("live", self._object_name(number), lifted.spec, lifted)
                self.functional.replace_contents(node, lifted.alias)
                live.append(number)
        return live

    def _written_in_backward(self) -> list[int]:
        later = self.trace.ops[self.trace.num_forward :]
        storages = {a.storage for op in later for a in op.writes if a.storage.kind == "input"}
        inputs = self.effects.inputs.items()
        return [number for number, lifted in inputs if lifted.alias.storage in storages and lifted.base is None]

    def _add_tangents(self, backward: TracedBackward) -> None:
        for place, alias in enumerate(backward.tangents):
            if alias is not None:
                node = self._input("tangent", self._tangent_name(place, backward), alias.spec, alias, None)
                node.meta["phase"] = backward.phase
                node.meta["tangent"] = ("tangent", backward.phase, place)

    def _tangent_name(self, place: int, backward: TracedBackward) -> str:
        if backward.phase > 1:
            return f"tangent{backward.phase}_{place}"
        return f"tangent_{self.trace.tangents[place].name}"

    def _add_gradients(self, backward: TracedBackward) -> None:
        names = [one.name for one in self.trace.gradients]
        names += [f"tangent {place}" for place in range(backward.num_slots - len(names))]
        for name, alias in zip(_part_names(names, backward.wholes), backward.gradients, strict=True):
            node = None if alias is None else self.functional.read(alias)
            self._output("grad", name, None if alias is None else alias.spec, node, None)

    # -- done -------------------------------------------------------------------------------------------

    def _finish(self) -> fx.GraphModule:
        graph = self.functional.graph
        graph.output(tuple(self.nodes))
        take_over(graph)
        clean(graph)
        graph.lint()
        return lazy_graph_module(self.inputs.constants, graph, "Program")

    def _calling(self, live: list[int], checks: Checks) -> Calling:
        trace, effects = self.trace, self.effects
        moved = self.functional.offset_sensitive
        sensitive = {number for number, lifted in effects.inputs.items() if lifted.alias.storage in moved}
        homes = {node.name: home for node, home in self.homes.items()}
        sensitive |= {
            n for n, a in homes.values() if n in effects.inputs and a.geometry != effects.inputs[n].alias.geometry
        }
        return Calling(
            homes=homes,
            questions=trace.questions if trace.phase == 0 else (),
            python_calls=trace.python_calls if trace.phase == 0 else (),
            replaced_grads=self._replaced_grads(),
            inputs=tuple(self.inputs.given),
            outputs=tuple(self.objects),
            gradients=trace.gradients,
            tangents=tuple(base.alias.object for base in trace.tangents),
            aliases=self.places,
            effects=effects,
            results=trace.results,
            structure=trace.structure,
            leaves_grad_mode=trace.leaves_grad_mode,
            live=tuple(live),
            backward_error=trace.backward.error if trace.backward else None,
            offset_sensitive=frozenset(sensitive),
            grads=trace.grads,
            retained=trace.retained,
            checks=checks,
            wrapping=trace.wrapping,
            stored=trace.stored,
        )

    def _replaced_grads(self) -> dict[int, int]:
        """Inputs whose .grad is replaced and read by nobody, and the object that it is on entry."""
        unread = self.inputs.unread - self.trace.returned - {step.target for step in self.effects.steps}
        found = {
            owner: grad.alias.object
            for owner, grad in self.trace.replaced_grads
            if grad.alias.object in unread and grad.base is None and not grad.is_argument and not grad.is_hidden
        }
        return found if len(set(found.values())) == len(found) else {}

    def _checks(self) -> Checks:
        survey, effects = self.trace.survey, self.effects
        counters = Counters(self.trace)
        seen = [lifted.alias.object for lifted in self.inputs.given if isinstance(lifted, TracedInput)]
        seen += [number for number in (*effects.returned, *effects.early) if number not in seen]
        readers: dict[str, set[int]] = {}
        for node, number in self.functional.reads:
            readers.setdefault(memory_of(node).name, set()).add(counters.of(number))
        return Checks(
            holders={effects.counters[number]: number for number in reversed(seen)},
            counters=effects.counters,
            readers=readers,
            saved=frozenset(map(counters.of, survey.saved)) if survey else frozenset(),
            dead_ends=tuple(
                None if end is None else DeadEnd(frozenset(map(counters.of, end.saved)), end.error)
                for end in (survey.dead_ends if survey else ())
            ),
        )


def build(trace: Trace, name: str, table: GhostTable) -> Program:
    """The program of a trace; the table says what ops return, as it did while recording."""
    return _Builder(trace, table).build(name)


def _is_given(node: fx.Node) -> bool:
    """Whether a value lies in memory that was there before the program ran."""
    return memory_of(node).op in ("placeholder", "get_attr")


def _part_names(names: list[str], wholes: tuple[Whole | None, ...]) -> list[str]:
    """The names of the values that gradients are made of."""
    pairs = zip(names, wholes or [None] * len(names), strict=True)
    return [name + path for name, whole in pairs for path in (("",) if whole is None else whole.paths)]
