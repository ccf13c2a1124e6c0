"""The call: generated Python that runs a program on real tensors, and leaves them as eager would."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import fx

from foregrad.backends.guarded_code import Guarded
from foregrad.core.size import VARYING, Formula, Size
from foregrad.core.source import Source
from foregrad.core.wrapper_autograd import whole
from foregrad.functionalize.effects import GoOn, RedoView, siblings
from foregrad.program.dead_code import checks_only, has_effect, is_draw, is_view
from foregrad.program.pieces import Piece, Pieces
from foregrad.program.split import Saved
from foregrad.record.lift.declared_state import Slot
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import AnyInput, TracedInput, TracedWrapper
from foregrad.runtime.autograd_function import AutogradFunction
from foregrad.runtime.backward_conditions import unusual
from foregrad.runtime.compiled_stage import CompiledStage
from foregrad.runtime.dead_ends import arrived, dead_ends
from foregrad.runtime.declared_state import emit_stores, literal
from foregrad.runtime.epilogue import (
    after_donation,
    emit_edges,
    emit_late_shifts,
    emit_steps,
    emit_version_shifts,
    geometry_text,
    look,
    over_memory,
    set_mode,
)
from foregrad.runtime.failures import APPLIES, BEGUN, random_state
from foregrad.runtime.gradient_carriers import carrier
from foregrad.runtime.partial_backward import RareBackward
from foregrad.runtime.questions import PASSED_ON, emit_pieces
from foregrad.runtime.result import result_text
from foregrad.runtime.size_formulas import dims_of
from foregrad.runtime.tangents import Asked
from foregrad.runtime.wrapper_tensors import check_standing, emit_wrapping, standing
from foregrad.torch_private.autograd import set_version, version_of
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, autocast_disabled, exclude_keys

_FEW_OPS = 6


class CallWriter:
    """Writes the body of a call: objects are `o3`, values of the program `r0`, carriers `c0`.

    A carrier is an empty result of the autograd function that stands for an input with a history, so that a second
    derivative finds its way to it; a leaf needs none.
    """

    def __init__(self, compiled: CompiledStage, slots: Sequence[Slot], bound: dict[int, str]) -> None:
        """`slots` are where the program's stores go, `bound` the names of real tensors, by id."""
        self.compiled, self.slots, self.bound = compiled, slots, bound
        self.program = compiled.program
        self.calling = compiled.program.calling
        self.halves = compiled.halves
        self.effects = self.calling.effects
        self.donation = donation = compiled.donation
        self.given_out = donation.outputs if donation is not None else self.halves.outputs
        self.outputs = tuple(
            place for place in self.given_out if self.program.signature.outputs[place].role != "answer"
        )
        self.written = donation.written if donation is not None else frozenset()
        self.inputs = [self._given(i) for i in (donation.inputs if donation is not None else self.halves.inputs)]
        self.gradients = self.calling.gradients
        self.differentiable: list[AnyInput] = [i for i in self._tensor_inputs() if i in self.gradients]
        # Those that wrap others, and views whose memory the program takes from their base.
        self.differentiable += [given for given in self.gradients if given not in self.differentiable]
        self.rest = [
            given for given in self.inputs if given not in self.differentiable and not isinstance(given, VARYING)
        ]
        self.dims = dims_of(compiled.sizes, compiled.numbers)
        self.watched = compiled.watched()
        counted = [self.effects.inputs[number] for number in self._counters() if number in self.effects.inputs]
        self.rest += [one for one in counted if one not in self.rest and one not in self.differentiable]
        self.early = [number for number in self.effects.early if number in self._counters()]
        self.has_end = bool(self.watched) or any(compiled.dead_errors()) or not self.differentiable
        self.leading = ["dims"] * bool(self.dims)
        self.passed_on = compiled.pieces.passed_on if compiled.pieces is not None else ()
        self.leading += ["rest"] * bool(self.rest or self.early or self.passed_on) + ["live"] * bool(self.calling.live)
        self.leading += ["watched"] * self.has_end
        self.standing = [str(ref) for ref in standing(self.calling, self._counters())] if compiled.stage.sources else []
        self.leading += ["standing"] * bool(self.standing)
        self.carried = [lifted for lifted in self.differentiable if not lifted.is_leaf or lifted.is_view]
        self.others = siblings(self.effects)
        # Autograd saves an input as it is by then: one that gets another geometry or other data is saved as it was.
        self.renamed = {f"o{s.target}" for s in self.effects.steps if isinstance(s, RedoView) and s.is_in_place}
        self.sources = self.calling.tangents

    def _given(self, place: int) -> TracedInput | Expression | Size | Formula:
        given = self.calling.inputs[place]
        assert given is not None
        return given

    def _tensor_inputs(self) -> list[TracedInput]:
        return [given for given in self.inputs if isinstance(given, TracedInput)]

    def write(self, source: Source, *, grad_enabled: bool) -> None:
        """Emit everything from the moment that the inputs are bound to their names to the return."""
        if self.compiled.asking:
            emit_pieces(source, self.compiled.asking, self._value_name, self._below_piece(source))
        if self._acts_early():
            source.line(BEGUN)
        elif self._draws() and not any(piece.draws for piece, _ in self.compiled.asking):
            source.line(f"random = {source.name('random_state', random_state)}()")
        if self.donation is not None:
            self._drop_grads(source)
        emit_edges(source, self.effects.steps)
        emit_steps(source, self.effects.prologue, {}, grad_enabled)
        if self.sources:
            # Inside `no_grad` a function may enable gradients again: what it returns then has a history.
            set_mode(source, grad_enabled, True)
            if self.has_end:
                source.line("watched = []")
                errors = source.name("errors", self.compiled.dead_errors())
                source.line(f"end = {source.name('dead_ends', dead_ends)}({errors}, watched)")
            if self.standing:
                source.line("standing = []")
            source.line(APPLIES)
            source.line(f"{self._results()} = {source.made('run', self._function())}({self._arguments()})")
            self._shift_versions(source, "-")
            for number in self.early:
                source.line(f"{source.name('set_version', set_version)}(o{number}, 0)")
            set_mode(source, True, grad_enabled)
        else:
            self._run(source, without_grad=not grad_enabled)
            self._name_results(source)
        if not self._acts_early():
            source.line(BEGUN)
        first = tuple(step for step in self.effects.steps if isinstance(step, GoOn) and step.is_first)
        emit_steps(source, first, {}, grad_enabled)
        emit_version_shifts(source, self.effects, inputs=True)
        later = tuple(step for step in self.effects.steps if step not in first)
        steps = after_donation(later, self.calling.aliases, self.written)
        toggles = [s for s in steps if getattr(s, "grad_enabled", grad_enabled) is not grad_enabled]
        if toggles or any(getattr(s, "how", "") for s in steps):
            with source.block("try:"):
                left = emit_steps(source, steps, self.calling.aliases, grad_enabled)
                set_mode(source, left, grad_enabled)
            with source.block("except BaseException:"):
                source.line(f"{source.name('set_grad_enabled', torch.set_grad_enabled)}({grad_enabled})")
                source.line("raise")
        else:
            emit_steps(source, steps, self.calling.aliases, grad_enabled)
        emit_late_shifts(source, self.effects)
        left = emit_wrapping(source, self.calling.wrapping, self.standing, grad_enabled)
        emit_stores(source, self.slots, [value for _, value in self.calling.stored], self.bound)
        for target, grad in self.calling.grads:
            source.line(f"{literal(source, target)}.grad = {'None' if grad is None else literal(source, grad)}")
        for number in self.calling.retained:
            source.line(f"o{number}.retain_grad()")
        set_mode(source, left, self.calling.leaves_grad_mode)
        self._make_python_calls(source)
        source.line(f"return {result_text(source, self.calling)}")

    def _acts_early(self) -> bool:
        """Whether something of the caller's changes before the program has run: then an error cannot be taken back."""
        acts = bool(self.written or self.effects.prologue or self.early)
        nodes = self.halves.forward.graph.nodes
        effects = [n for n in nodes if has_effect(n) and not (is_draw(n) or checks_only(n))]
        return acts or bool(effects) or any("generator" in n.meta for n in nodes)

    def _draws(self) -> bool:
        return any(map(is_draw, self.halves.forward.graph.nodes))

    def _make_python_calls(self, source: Source) -> None:
        """Run what the function runs by `fg.python`, on values of the program."""
        places = iter([place for place in self.outputs if self.program.signature.outputs[place].role == "python"])
        for call in self.calling.python_calls:
            source.line(f"{source.name('python_call', call)}({', '.join(f'r{next(places)}' for _ in call.ops)})")

    def _drop_grads(self, source: Source) -> None:
        """Let go of gradients that nobody reads before new ones are made, as `zero_grad` does."""
        dropped = self.calling.replaced_grads
        for number, grad in dropped.items():
            source.line(f"o{number}.grad = o{grad} = None")

    # -- names ------------------------------------------------------------------------------------------

    def _results(self) -> str:
        """The targets that the autograd function's results are unpacked to."""
        return "".join(f"{name}, " for name in self._result_names()) or "_"

    def _result_names(self) -> list[str]:
        names = [self._result_name(place) for place in self.outputs]
        names += [f"o{number}" for number in self.others]
        return [*names, *(f"c{i}" for i in range(len(self.carried)))]

    def _result_name(self, place: int) -> str:
        is_output = self.program.signature.outputs[place].role == "output"
        return f"o{self.calling.outputs[place]}" if is_output else f"r{place}"

    def _arguments(self) -> str:
        live = "".join(f"o{number}, " for number in self.calling.live)
        leading = [f"({names})" for names in (self.dims, self._rest(), live) if names]
        lists = [*["watched"] * self.has_end, *["standing"] * bool(self.standing)]
        return ", ".join([*leading, *lists, *self._tensors()])

    def _rest(self) -> str:
        """Tensors that the forward takes and autograd need not know."""
        names = [*map(self._name, self.rest), *(f"o{number}" for number in self.early)]
        return "".join(f"{n}, " for n in [*names, *map(PASSED_ON.format, self.passed_on)])

    def _tensors(self) -> list[str]:
        """Tensors through which autograd knows the function."""
        return [*map(self._name, self.differentiable), *["end"] * self.has_end]

    def _name(self, given: AnyInput | Expression | Size | Formula) -> str:
        if isinstance(given, TracedWrapper):
            return f"w{given.index}"
        if isinstance(given, VARYING):
            return repr(given)
        return f"o{given.alias.object}" if isinstance(given, TracedInput) else f"n{given.index}"

    # -- without autograd -------------------------------------------------------------------------------

    def _run(self, source: Source, *, without_grad: bool) -> None:
        """Emit the call of the forward half."""
        half, pieces = self.compiled.forward_graph, self.compiled.pieces
        results: Any = half.graph.output_node().args[0]
        if pieces is None:
            targets = [f"r{place}" for place in self.outputs]
            targets += [f"v{i}" for i in range(len(results) - len(targets))]
            arguments, late = [self._name(given) for given in self.inputs], list[tuple[str, str]]()
        else:
            targets, late = self._targets(pieces)
            arguments = [self._value_name(name) for name in pieces.rest.inputs]
        unpack = "".join(f"{t}, " for t in targets)
        call = f"{source.name('forward_half', self.compiled.run_forward)}({', '.join(arguments)})"
        without_grad = without_grad and not self.written
        if results or pieces is None or any(n.op == "call_function" for n in half.graph.nodes):
            with self._below_autograd(source, half, self.compiled.run_forward, without_grad=without_grad):
                source.line(f"{unpack}= {call}" if unpack else call)
        for target, value in late:
            source.line(f"{target} = {value}")

    def _targets(self, pieces: Pieces) -> tuple[list[str], list[tuple[str, str]]]:
        """The names of what the rest of a forward gives, and those of what its pieces have given before."""
        num = len(self.given_out)
        named = [*(f"r{place}" for place in self.given_out), *(f"v{i}" for i in range(len(pieces.outputs) - num))]
        targets: dict[str, str] = {}
        late: list[tuple[str, str]] = []
        for target, value in zip(named, pieces.outputs, strict=True):
            if value in pieces.rest.outputs and value not in targets:
                targets[value] = target
            elif value is not None:
                late.append((target, targets.get(value) or self._value_name(value)))
            elif target[1:].isdigit() and target[0] == "r" and int(target[1:]) in self.outputs:
                late.append((target, "None"))
        return [targets[value] for value in pieces.rest.outputs], late

    def _value_name(self, value: str) -> str:
        """A value of the forward graph: an input, or what a piece has given."""
        given = self._given_names.get(value)
        return PASSED_ON.format(value) if given is None else given

    @cached_property
    def _given_names(self) -> dict[str, str]:
        graph = self.donation.graph if self.donation is not None else self.halves.forward
        placeholders = [node.name for node in graph.graph.nodes if node.op == "placeholder"]
        return dict(zip(placeholders, map(self._name, self.inputs), strict=True))

    def _below_piece(self, source: Source) -> Callable[[Piece, Any], AbstractContextManager[None]]:
        return lambda piece, run: self._below_autograd(source, piece.graph, run, without_grad=False)

    @contextmanager
    def _below_autograd(
        self, source: Source, half: fx.GraphModule, run: Callable[..., Any], *, without_grad: bool
    ) -> Iterator[None]:
        """Let the ops of a half skip autograd, and autocast, which has had its say.

        Where gradients are off anyway, a few ops are faster than the guard, as long as none of them makes a view, and
        none makes a tensor out of nothing, whose version torch would count from. Compiled code sees to it itself.
        """
        calls = [n for n in half.graph.nodes if n.op == "call_function"]
        guards = []
        is_plain = without_grad and len(calls) <= _FEW_OPS and all(n.all_input_nodes and not is_view(n) for n in calls)
        if not is_plain and not isinstance(run, Guarded):
            guards.append(f"{source.name('exclude_keys', exclude_keys)}({source.name('below', BELOW_AUTOGRAD)})")
        if torch.is_autocast_enabled("cpu") and half is not self.halves.backward:
            guards.append(f"{source.name('autocast_disabled', autocast_disabled)}()")
        with source.block(f"with {', '.join(guards)}:") if guards else nullcontext():
            yield

    def _name_results(self, source: Source) -> None:
        for place in self.outputs:
            if self._result_name(place) != f"r{place}":
                source.line(f"{self._result_name(place)} = r{place}")
        emit_version_shifts(source, self.effects, inputs=False)
        for number, first in self.others.items():
            base = self.effects.returned[number]
            how = "detach" if self.effects.counters[number] == self.effects.counters[first] else "data"
            if base.alias.dtype != self.effects.returned[first].alias.dtype:
                geometry = geometry_text(source, base.alias.geometry)
                over = f"{source.name('over_memory', over_memory)}(o{first}, {geometry})"
                source.line(f"o{number} = {over}{'' if how == 'detach' else '.data'}")
                continue
            source.line(f"o{number} = {look(f'o{first}', base.alias.geometry, how)}")

    # -- with autograd ----------------------------------------------------------------------------------

    def _function(self) -> AutogradFunction:
        """The autograd function around the two halves."""
        name = self.program.name if self.program.name.isidentifier() else "program"
        return AutogradFunction(name, self._forward(), self._backward())

    def _forward(self) -> Callable[..., Any]:
        source = Source(has_sizes=bool(self.dims))
        names = ", ".join(["ctx", *self.leading, *self._tensors()])
        with source.block(f"def forward({names}):"):
            if self.dims:
                source.line(f"{self.dims}= ctx.dims = dims")
            if self._rest():
                source.line(f"{self._rest()}= rest")
            self._run(source, without_grad=True)
            source.line(BEGUN)
            self._name_results(source)
            self._set_versions(source, self._counters())
            for i, lifted in enumerate(self.carried):
                source.line(f"c{i} = {carrier(source, lifted)}.detach()")
            source.line("ctx.set_materialize_grads(False)")
            self._shift_versions(source, "+")
            source.line(f"ctx.save_for_backward({self._saved()})")
            for place, number in self.watched:
                version = f"{source.name('version_of', version_of)}(o{number})"
                source.line(f"watched.append(({place}, o{number}.detach(), {version}))")
            if self.calling.live:
                source.line("ctx.live = live")
            if self.standing:
                source.line("ctx.standing = standing")
            plain = ", ".join(self._not_differentiable())
            if plain:
                source.line(f"ctx.mark_non_differentiable({plain})")
            source.line(f"return {self._results()}")
        return source.load("forward")

    def _shift_versions(self, source: Source, sign: str) -> None:
        """Let the counters of inputs stand, while values in their memory are saved, where they will stand in the end:
        a later write by the user is then noticed, and the effects of this call are not. Autograd must have looked at
        the inputs before: a view whose counter has moved gets its history anew."""
        set_to, get = source.name("set_version", set_version), source.name("version_of", version_of)
        for number in self._counters():
            moves = self.effects.bumps.get(number, 0) + self.effects.version_shifts.get(number, 0)
            if moves and number in self.effects.inputs:
                source.line(f"{set_to}(o{number}, {get}(o{number}) {sign} {moves})")

    def _counters(self) -> list[int]:
        """Version counters of the caller's tensors that are saved or watched."""
        found = [self.compiled.counter_of(saved) for saved in self.halves.saved]
        found += [*self.compiled.checks, *(number for _, number in self.watched)]
        return list(dict.fromkeys(number for number in found if number is not None))

    def _set_versions(self, source: Source, numbers: Collection[int]) -> None:
        """Tensors with a counter of their own stand where they will stand in the end, before they are saved."""
        holders = [n for n in self.effects.returned if self.effects.counters[n] in numbers]  # of counters of others
        for number in dict.fromkeys([*numbers, *holders]):
            if number in self.effects.late_versions:
                version = self.effects.late_versions[number]
                source.line(f"{source.name('set_version', set_version)}(o{number}, {version})")

    def _saved(self) -> str:
        names = [
            f"{self._saved_value(saved)}.data" if self.compiled.is_read_past(saved) else self._saved_value(saved)
            for saved in self.halves.saved
        ]
        names += [f"o{number}.detach()" for number in self.compiled.checks.values()]
        return ", ".join([*names, *(f"c{i}" for i in range(len(self.carried)))])

    def _saved_value(self, saved: Saved) -> str:
        if saved.source == "input":
            name = self._name(self.inputs[saved.place])
            return f"{name}.detach()" if name in self.renamed else name
        home = self.calling.homes.get(saved.name)
        if home is not None:
            number, alias = home
            known = self.effects.inputs.get(number)
            whole = known.alias if known is not None else self.effects.returned[number].alias
            if alias.geometry == whole.geometry:
                return f"o{number}.detach()"
            return look(f"o{number}", alias.geometry, "detach")
        if saved.source == "output":
            # Not the result itself, whose history is this very node, but its memory and version counter.
            return f"{self._result_name(self.halves.outputs[saved.place])}.detach()"
        return f"v{saved.place}"

    def _not_differentiable(self) -> list[str]:
        names = [self._result_name(place) for place in self.outputs if self.calling.outputs[place] not in self.sources]
        return names + [f"o{number}" for number in self.others if number not in self.sources]

    def _backward(self) -> Callable[..., Any]:
        source = Source(has_sizes=bool(self.dims))
        names = [f"g_{name}" for name in self._result_names()]
        tangents = [self._tangent(number) for number in self.sources]
        with source.block(f"def backward({', '.join(['ctx', *names])}):"):
            if self.standing:
                source.line(f"{source.name('check_standing', check_standing)}(ctx.standing)")
            if self.dims:
                source.line(f"{self.dims}= ctx.dims")
            carriers = "".join(f"g_c{i}, " for i in range(len(self.carried)))
            missing = [f"{t} is None" for t in tangents] + [f"g_c{i} is not None" for i in range(len(self.carried))]
            missing += unusual(source, tangents, self.compiled.stage.sources, has_sizes=self.compiled.sizes is not None)
            rare = " or ".join([f"{source.name('is_grad_enabled', torch.is_grad_enabled)}()", *missing])
            with source.block(f"if {rare}:"):
                source.line(f"return rare(ctx, ({''.join(t + ', ' for t in tangents)}), ({carriers}))")
            self._usual_backward(source, tangents)
        source.namespace["rare"] = self._rare_backward()
        return source.load("backward")

    def _tangent(self, number: int) -> str:
        for place in self.outputs:
            if self.calling.outputs[place] == number:
                return f"g_{self._result_name(place)}"
        return f"g_o{number}"

    def _usual_backward(self, source: Source, tangents: list[str]) -> None:
        """Every output's tangent has arrived, and nobody will differentiate again."""
        stage = self.compiled
        usual = stage.usual_backward()
        if usual is None or usual.writes:
            source.line(f"return rare(ctx, ({''.join(t + ', ' for t in tangents)}), ({'None, ' * len(self.carried)}))")
            return
        if usual.saved or usual.checks:
            names = [f"s{i}" for i in range(len(self.halves.saved) + len(stage.checks) + len(self.carried))]
            source.line(f"{', '.join(names)}, = ctx.saved_tensors")
        saved = [f"s{i}" for i in usual.saved]
        saved += [self._name(self._given(place)) for place in self.halves.numbers]
        saved += [f"ctx.live[{i}]" for i in range(len(self.calling.live))]
        run = source.name("backward_half", usual.run)
        if isinstance(usual.run, Asked):
            source.line(f"{run}_ = {run}()")
            run += "_"
        with self._below_autograd(source, self.halves.backward, usual.run, without_grad=True):
            targets = "".join(f"d{i}, " for i in range(len(self.gradients)))
            call = f"{run}({', '.join([*saved, *tangents])})"
            if usual.wholes:
                call = f"{source.name('whole', whole)}({call}, {source.name('wholes', usual.wholes)})"
            source.line(f"{targets or '_'} = {call}")
        order = [self.gradients.index(lifted) for lifted in self.differentiable]
        end = [source.name("all_arrived", arrived(tangents))] * self.has_end
        source.line(f"return {', '.join([*['None'] * len(self.leading), *(f'd{i}' for i in order), *end])}")

    def _rare_backward(self) -> RareBackward:
        stage = self.compiled
        return RareBackward(
            stage=stage,
            order=tuple(self.gradients.index(lifted) for lifted in self.differentiable),
            carried=tuple(self.differentiable.index(lifted) for lifted in self.carried),
            num_saved=len(stage.halves.saved) + len(stage.checks),
            num_leading=len(self.leading),
            has_live=bool(self.calling.live),
            has_end=self.has_end,
            has_dims=bool(self.dims),
        )
