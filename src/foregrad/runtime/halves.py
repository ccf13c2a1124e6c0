"""Stages at run time: forward and backward compiled, and the backwards that are rarely asked for.

A backward from only some of the outputs, and one that will itself be differentiated (`create_graph=True`), are recorded
and compiled when first asked for, from the autograd graph that the recording has kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Runner, start
from foregrad.backends.choose import can_write
from foregrad.backends.compilers import compiles
from foregrad.backends.guarded import Guarded
from foregrad.errors import BackwardError
from foregrad.program.build import Stage, build
from foregrad.program.donate import donate
from foregrad.program.kept import fitted
from foregrad.program.program import Program
from foregrad.program.split import Halves, Saved
from foregrad.record.inputs import Lifted
from foregrad.record.recording import Backward, Layouts, usual_layouts
from foregrad.record.saved import Survey, survey
from foregrad.record.sizes import Assumed, symbolic_strides
from foregrad.regions.regions import Regions
from foregrad.runtime.backward import CompiledBackward, Unpacked, each_example, run_compiled, runner_for
from foregrad.runtime.dead_ends import Errors
from foregrad.runtime.fallbacks import slow_parts, warn_of_slow_parts
from foregrad.runtime.formulas import Dims, formulas
from foregrad.runtime.way import Way
from foregrad.substrate import BELOW_AUTOGRAD, exclude_keys
from foregrad.substrate_batch import is_transformed
from foregrad.substrate_engine import apply_of
from foregrad.words.size import frozen_all
from foregrad.words.spec import Spec, restrided
from foregrad.words.wrapping import whole

#: How many layouts of tangents a stage is recorded for; tangents of any further one are copied to the usual layout.
_MOST_LAYOUTS = 16


class CompiledStage:
    """A stage of a recording with its compiled halves."""

    def __init__(
        self, stage: Stage, program: Program, way: Way, known: tuple[Runner | None, ...] = (None, None)
    ) -> None:
        """`known` are the halves, where they were compiled before."""
        self.stage = stage
        self.sizes = stage.recording.sizes
        self.program = program
        self._way = way
        self.halves: Halves = program.halves
        is_differentiated = stage.phase > 0 or any(base.needs_tangent for base in stage.results.bases)
        self.donation = donate(program) if not is_differentiated and can_write(way.backend) else None
        written = self.donation.graph if self.donation else self.halves.forward
        forward = self._start(written, "forward", known[0])  # and backward, before either is finished
        self._saved_keys = [s.key for s in self.halves.saved]
        self._kept = {s.key: s.spec for s in self.halves.saved}
        self.checks = self._find_checks()
        self._lock = threading.RLock()
        self._backwards: dict[Layouts, CompiledBackward] = {}
        self._nexts: dict[tuple[Layouts, tuple[bool, ...]], CompiledStage] = {}
        self._assumed: dict[Any, int] = {}  # how much these assume about sizes that vary
        self.twin: Callable[[Dims], CompiledStage] | None = None  # the stage, recorded for the sizes of another call
        backward = None if stage.backward is None else self._start_backward(program, self.halves, known[1])
        self.run_forward = forward()
        if stage.backward is not None and backward is not None:
            layouts = tuple(None if t is None else t.spec.stride for t in stage.backward.tangents)
            self._backwards[layouts] = backward()
        warn_of_slow_parts(program.name, slow_parts([self.run_forward, *(b.run for b in self._backwards.values())]))

    @property
    def regions(self) -> tuple[Regions, ...]:
        """The regions of each half that its backend compiled by regions."""
        return tuple(run.regions for run in self.cut_runs if run.regions is not None)

    @property
    def cut_runs(self) -> list[Guarded]:
        """What runs the halves that were compiled by regions, forward first."""
        runs = [self.run_forward, *(b.run for b in self._backwards.values())]
        return [run for run in runs if isinstance(run, Guarded) and run.cuts is not None]

    # -- what must not be written ---------------------------------------------------------------------------

    def _find_checks(self) -> dict[int, int]:
        """Version counters to check beside those of the saved values, and a tensor that has each."""
        checks = self.program.calling.checks
        if self.stage.phase:
            return {}
        covered = {self.counter_of(saved) for saved in self.halves.saved if not self.is_read_past(saved)}
        read = {counter for saved in self.halves.saved for counter in checks.readers.get(saved.name, ())}
        wanted = sorted((checks.saved | read) - covered)
        return {counter: checks.holders[counter] for counter in wanted if counter in checks.holders}

    def checks_of(self, program: Program) -> tuple[int, ...]:
        """Which of these a backward of this stage makes: their places among what the stage saved."""
        checks, first = program.calling.checks, len(self.halves.saved)
        read = {c for saved in program.halves.saved for c in checks.readers.get(saved.name, ())}
        return tuple(first + i for i, counter in enumerate(self.checks) if counter in checks.saved | read)

    def is_read_past(self, saved: Saved) -> bool:
        """Whether a saved value lies in a tensor of the caller's whose version eager would not look at."""
        counter = self.counter_of(saved) if saved.name not in self.halves.read_again else None
        return counter is not None and self.program.calling.checks.is_read_past(saved.name, counter)

    def counter_of(self, saved: Saved) -> int | None:
        """The version counter of the tensor that a saved value lies in, if the caller can see it."""
        calling, number = self.program.calling, None
        if saved.source == "input":
            lifted = calling.inputs[self.halves.inputs[saved.place]]
            number = lifted.alias.object if isinstance(lifted, Lifted) else None
        elif saved.name in calling.homes:
            number = calling.homes[saved.name][0]
        elif saved.source == "output":
            place = self.halves.outputs[saved.place]
            is_result = self.program.signature.outputs[place].role == "output"  # else it is copied to a tensor
            number = calling.outputs[place] if is_result else None
        return None if number is None else calling.checks.counters.get(number)

    def watched(self) -> list[tuple[int, int]]:
        """Tensors that dead ends have saved: the place of the source, and the tensor."""
        checks = self.program.calling.checks
        ends = [(place, end) for place, end in enumerate(checks.dead_ends) if end is not None]
        return [(place, checks.holders[c]) for place, end in ends for c in sorted(end.saved) if c in checks.holders]

    def dead_errors(self) -> Errors:
        """For each source, the error that its dead ends raise in any case."""
        ends = self.program.calling.checks.dead_ends
        return tuple(None if end is None else end.error for end in ends)

    # -- backwards ------------------------------------------------------------------------------------------

    def layouts_of(self, tangents: Sequence[Any]) -> Layouts:
        """The layouts of tangents, as far as the stage is recorded for them or still can be."""
        found = zip(tangents, self.stage.sources, self._usual_layouts, strict=True)
        layouts = tuple(None if t is None else self._layout(t, source, usual) for t, source, usual in found)
        if layouts in self._backwards or len(self._backwards) < _MOST_LAYOUTS:
            return layouts
        return tuple(None if t is None else usual for t, usual in zip(tangents, self._usual_layouts, strict=True))

    @cached_property
    def _usual_layouts(self) -> Layouts:
        return usual_layouts(self.stage.sources)

    def _layout(self, tangent: torch.Tensor, source: torch.Tensor, usual: Any) -> tuple[int, ...]:
        if is_transformed(tangent) or (compiles(self._way.backend) and _is_sooner_copied(tangent, usual)):
            return usual
        if self.sizes is None:
            return tangent.stride()
        return frozen_all(symbolic_strides(tangent, source.size()))

    def backward(self, layouts: Layouts) -> CompiledBackward:
        """The backward for tangents of these layouts."""
        with self._lock:
            if layouts not in self._backwards:
                self._backwards[layouts] = self._record_backward(layouts)
                self._note_sizes(layouts)
            found = self._backwards[layouts]
        if found.error is not None:
            raise found.error.with_traceback(None)
        return found

    def usual_backward(self) -> CompiledBackward | None:
        """The backward from all outputs; None if capture found that it raises."""
        found = self._backwards.get(self._usual_layouts)
        return None if found is None or found.error is not None else found

    def _record_backward(self, layouts: Layouts) -> CompiledBackward:
        stage = replace(self.stage, survey=_survey(self.stage, layouts))
        stage = replace(stage, backward=run_engine(stage, layouts))
        program = self._built(stage, lambda halves: halves.saved)
        made = self._start_backward(program, program.halves)()
        warn_of_slow_parts(program.name, slow_parts([made.run]))
        return made

    def _built(self, stage: Stage, wanted: Callable[[Halves], Sequence[Saved]]) -> Program:
        """A later program of the recording, which takes what this one keeps."""
        program = build(stage, self.program.name).apply(self._way.passes).marked_like(self.program)
        return program if program.calling.backward_error else fitted(program, self._kept, wanted, self.stage.phase)

    def _start(self, graph: fx.GraphModule, name: str, known: Runner | None) -> Callable[[], Runner]:
        return start(self._way.backend, graph, name) if known is None else lambda: known

    def _start_backward(
        self, program: Program, halves: Halves, known: Runner | None = None
    ) -> Callable[[], CompiledBackward]:
        error = program.calling.backward_error
        if error is not None:
            refused = CompiledBackward(lambda *_: (), (), 0, (), (), (), error)
            return lambda: refused
        calling, signature = program.calling, program.signature
        inputs = [signature.inputs[i] for i in halves.tangents]
        written = [i for i in halves.gradients if signature.outputs[i].role == "write in backward"]
        run = self._start(halves.backward, "backward", known)
        strides = tuple(i.spec.stride for i in inputs if i.role == "tangent")
        numbers = tuple(calling.inputs[i] for i in halves.numbers)
        return lambda: CompiledBackward(
            run=run(),
            saved=tuple(self._saved_keys.index(s.key) for s in halves.saved),
            num_gradients=len(halves.gradients) - len(written),
            strides=strides,
            checks=self.checks_of(program),
            writes=tuple(calling.live.index(calling.outputs[i]) for i in written),
            wholes=calling.wrapping.gradients,
            at=None if self.sizes is None else formulas(self.sizes, repr((strides, numbers))),
        )

    def run_backward(self, saved: Any, tangents: Sequence[Any], live: Sequence[Any], dims: Dims) -> list[Any]:
        """Gradients for the slots of the stage, from the tangents that are defined."""
        layouts = self.layouts_of(tangents)
        found = self.backward(layouts)
        if (failing := self._failing(layouts, dims)) is not None:
            return self._twin(failing, dims).run_backward(saved, tangents, live, dims)
        return run_compiled(found, saved, tangents, live, dims)

    def _note_sizes(self, recorded: Any) -> None:
        if self.sizes is not None:
            self._assumed[recorded] = self.sizes.num_assumed

    def _failing(self, recorded: Any, dims: Dims) -> Assumed | None:
        """What a backward assumes that was recorded after the capture, and does not hold: no call checks it."""
        if self.sizes is None or recorded not in self._assumed:
            return None
        late = self.sizes.assumed(self.sizes.num_checked, self._assumed[recorded])
        return next((one for one in late if not formulas(self.sizes, one.code)(dims)), None)

    def _twin(self, failing: Assumed, dims: Dims) -> CompiledStage:
        if self.twin is None:
            raise BackwardError(
                f"this backward was recorded where {failing.text}, which does not hold now.\n  {failing.line}\n"
                "Compile with dynamic=False."
            )
        return self.twin(dims)

    @cached_property
    def at(self) -> Callable[[Dims], Any]:
        """For a stage whose forward is a backward: the strides of its tangents in a call, and its inputs that are
        numbers; None for those that are tangents."""
        assert self.stage.earlier is not None
        strides = tuple(t.spec.stride for t in self.stage.earlier.tangents if t is not None)
        numbers = tuple(self.program.calling.inputs[i] for i in self.halves.inputs)
        return (
            (lambda dims: (strides, numbers)) if self.sizes is None else formulas(self.sizes, repr((strides, numbers)))
        )

    def next_stage(self, tangents: Sequence[Any], dims: Dims) -> CompiledStage:
        """The stage whose forward is this stage's backward, for tangents some of which can be differentiated."""
        layouts, differentiable = self.layouts_of(tangents), tuple(t is not None and t.requires_grad for t in tangents)
        with self._lock:
            key = (layouts, differentiable)
            if key not in self._nexts:
                self._nexts[key] = self._record_next(layouts, differentiable)
                self._note_sizes(key)
        failing = self._failing(key, dims)
        return self._nexts[key] if failing is None else self._twin(failing, dims).next_stage(tangents, dims)

    def _record_next(self, layouts: Layouts, differentiable: tuple[bool, ...]) -> CompiledStage:
        stage = self.stage
        earlier = run_engine(stage, layouts, differentiable)
        if earlier.error is not None:
            raise earlier.error
        following = replace(
            stage,
            survey=_survey(stage, layouts),
            earlier=earlier,
            phase=stage.phase + 1,
            slots=(*stage.slots, *(t.ghost for t in earlier.tangents if t is not None and t.ghost.requires_grad)),
            sources=tuple(g for g in earlier.gradients if g is not None and g.requires_grad),
            backward=None,
        )
        if following.sources:
            following = replace(following, backward=run_engine(following, usual_layouts(following.sources)))
        program = self._built(following, lambda halves: halves.kept)
        return CompiledStage(following, program, self._way)


def _is_sooner_copied(tangent: torch.Tensor, usual: Any) -> bool:
    """Whether to copy a tangent takes less time than to compile another backward: it has gaps, repeats elements, or
    differs only in strides that are never taken."""
    spec = Spec.of(tangent)
    differing = [n for n, a, b in zip(spec.shape, spec.stride, usual, strict=True) if a != b]
    return not spec.is_dense or all(n == 1 for n in differing)


def _survey(stage: Stage, layouts: Layouts) -> Survey | None:
    """What lies behind the sources whose tangents arrive; only the first stage reads tensors of the caller's."""
    if stage.phase:
        return None
    sources = [source for source, stride in zip(stage.sources, layouts, strict=True) if stride is not None]
    return survey(stage.recording, sources, stage.slots)


def run_engine(stage: Stage, layouts: Layouts, differentiable: tuple[bool, ...] | None = None) -> Backward:
    """Record the backward of a stage for tangents of these layouts."""
    reals = [lifted.reachable for lifted in stage.inputs]
    backward = stage.recording.backward(
        stage.sources, stage.slots, layouts, reals=reals, differentiable=differentiable, earlier=stage.earlier
    )
    error = backward.error or (_delayed_error(stage.sources) if stage.earlier is not None else None)
    return replace(backward, error=error)


def _delayed_error(gradients: Sequence[torch.Tensor]) -> Exception | None:
    """The error that autograd keeps in a gradient that cannot be differentiated again."""
    for gradient in gradients:
        node = gradient.grad_fn
        if node is not None and node.name().endswith("Error"):
            try:
                node(gradient)  # type: ignore[operator]
            except RuntimeError as error:
                return error
    return None


class Later(torch.autograd.Function):
    """Runs a backward as a forward of its own, so that its results can be differentiated again.

    `edges` are tensors that stand for the stage's slots: only their places in the autograd graph matter.
    """

    @staticmethod
    def forward(
        ctx: Any, compiled: CompiledStage, kept: dict[Any, Any], around: Any, tangents: Any, *edges: Any
    ) -> Any:
        halves, stage = compiled.halves, compiled.stage
        assert stage.earlier is not None
        live, dims = around
        strides, numbers = compiled.at(dims)
        with exclude_keys(BELOW_AUTOGRAD):
            arrived = iter([restrided(t, stride) for t, stride in zip(tangents, strides, strict=True)])
            given = [next(arrived) if number is None else number for number in numbers]
            run = runner_for(compiled.run_forward, given)
            results = run(*given, *(kept[s.key] for s in halves.kept))
        num = len(halves.outputs)
        outputs = tuple(None if r is None else r.detach() for r in results[:num])
        sources = {
            "input": given,
            "kept": [kept[s.key] for s in halves.kept],
            "output": [None if r is None else r.detach() for r in outputs],
            "value": results[num:],
        }
        ctx.set_materialize_grads(False)
        ctx.compiled, ctx.live, ctx.dims, ctx.num_edges = compiled, live, dims, len(edges)
        ctx.save_for_backward(*[sources[s.source][s.place] for s in halves.saved], *edges)
        gradients = stage.earlier.gradients
        ctx.mark_non_differentiable(
            *[
                o
                for o, g in zip(outputs, gradients, strict=True)
                if o is not None and g is not None and not g.requires_grad
            ]
        )
        ctx.places = [i for i, g in enumerate(gradients) if g is not None and g.requires_grad]
        return outputs

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> Any:
        tangents = [arrived[place] for place in ctx.places]
        if torch.is_grad_enabled():
            saved = Unpacked(ctx)
            edges = saved.outputs(len(ctx.compiled.halves.saved)) if ctx.num_edges else ()
            gradients = differentiable_backward(ctx.compiled, saved, tangents, ctx.live, ctx.dims, edges)
        else:
            gradients = ctx.compiled.run_backward(Unpacked(ctx), tangents, ctx.live, ctx.dims)
        return (None, None, None, None, *gradients)


def differentiable_backward(
    compiled: CompiledStage, saved: Unpacked, tangents: Sequence[Any], live: Any, dims: Dims, edges: Sequence[Any]
) -> Sequence[Any]:
    """The gradients of a stage, as tensors that can be differentiated again."""
    places = [place for place, tangent in enumerate(tangents) if tangent is not None]

    def run(*defined: Any) -> tuple[Any, ...]:
        given = dict(zip(places, defined, strict=True))
        following = compiled.next_stage([given.get(place) for place in range(len(tangents))], dims)
        needed = {s.key for s in following.halves.kept}
        for i in compiled.checks_of(following.program):
            saved[i]
        kept = {s.key: saved[i] for i, s in enumerate(compiled.halves.saved) if s.key in needed}
        slots = [*edges, *(t for t in defined if t.requires_grad)]
        assert following.stage.earlier is not None
        found = apply_of(Later)(following, kept, (live, dims), defined, *slots)
        return tuple(whole(found, following.stage.earlier.wholes))

    return each_example(run, [tangents[place] for place in places])
