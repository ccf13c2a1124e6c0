"""Compiled stage: forward and backward compiled, and the backwards that are rarely asked for.

A backward from only some of the outputs, and one that will itself be differentiated (`create_graph=True`), are recorded
and compiled when first asked for, from the autograd graph that the recording has kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Runner, start
from foregrad.backends.choose import can_write
from foregrad.backends.compiling import compiles
from foregrad.backends.eager import compile_graph
from foregrad.backends.guarded_code import Guarded
from foregrad.core.errors import BackwardError
from foregrad.core.size import frozen_all
from foregrad.passes.donation import donate
from foregrad.process.forks import undivided
from foregrad.program.build import build
from foregrad.program.pieces import Piece, Pieces, asks_of, cut
from foregrad.program.program import Program
from foregrad.program.reuse_saved import fitted
from foregrad.program.split import Halves, Saved
from foregrad.record.freeze import freeze
from foregrad.record.recording import Layouts, usual_layouts
from foregrad.record.stage import Stage
from foregrad.record.symbols.dimensions import Assumed, symbolic_strides
from foregrad.record.trace import TracedInput
from foregrad.regions.regions import Regions
from foregrad.runtime.backward import CompiledBackward, run_compiled
from foregrad.runtime.dead_ends import Errors
from foregrad.runtime.fallback_warnings import slow_parts, warn_of_slow_parts
from foregrad.runtime.late_backward import refuse_late, refuse_nonlinear, run_engine, survey_of
from foregrad.runtime.options import Claim, Options, claim_nothing
from foregrad.runtime.questions import Ask, SharedPiece, SharedPieces
from foregrad.runtime.size_formulas import Dims, formulas
from foregrad.runtime.tangents import Asked, Tangents

#: How many layouts of tangents a stage is recorded for; tangents of any further one are copied to the usual layout.
_MOST_LAYOUTS = 16

#: A piece of so many ops is run op by op: that takes microseconds, and its compilation seconds.
_FEW_OPS = 8


class CompiledStage:
    """A stage of a recording with its compiled halves."""

    def __init__(
        self,
        stage: Stage,
        program: Program,
        options: Options,
        known: tuple[Runner | None, ...] = (None, None),
        claim: Claim = claim_nothing,
        shared: SharedPieces | None = None,
    ) -> None:
        """`known` are the halves, where they were compiled before, and `claim` looks for those of later programs;
        `shared` are the pieces of other paths of the function."""
        self.stage = replace(stage, live=frozenset(program.calling.live), stored=())
        self._claim = claim
        self.on_backward: Callable[[], None] = lambda: None  # told when there is one more backward
        self.sizes = stage.recording.sizes
        self.numbers = stage.recording.numbers.carried
        self.program = program
        self._way = options
        self.halves: Halves = program.halves
        is_differentiated = stage.phase > 0 or bool(program.calling.tangents)
        self.donation = donate(program) if not is_differentiated and can_write(options.backend) else None
        written = self.donation.graph if self.donation else self.halves.forward
        outputs = self.donation.outputs if self.donation else self.halves.outputs
        asks = asks_of(program, outputs)
        self.pieces: Pieces | None = cut(written, asks) if asks else None
        starting = [self._start_piece(piece, {} if shared is None else shared) for piece in self._before]
        self.forward_graph = self.pieces.rest.graph if self.pieces is not None else written
        forward = self._start(self.forward_graph, "forward", known[0])  # and backward, before either is finished
        self._saved_keys = [s.key for s in self.halves.saved]
        self._kept = {s.key: s.spec for s in self.halves.saved}
        self.checks = self._find_checks()
        self._lock = stage.recording.lock  # other stages run the engine over the same recording
        self._backwards: dict[Layouts, CompiledBackward] = {}
        self._nexts: dict[tuple[Layouts, tuple[bool, ...]], CompiledStage] = {}
        self._assumed: dict[Any, int] = {}  # how much these assume about sizes that vary
        self.rerecord: Callable[[Dims], CompiledStage] | None = None  # for the sizes of another call
        backward = None if self._is_asked_for_first(known[1]) else self._start_backward(program, self.halves, known[1])
        self.asking = tuple((piece, run()) for piece, run in zip(self._before, starting, strict=True))
        self.run_forward = forward()
        if stage.backward is not None and backward is not None:
            self._backwards[self._first_layouts] = backward()
        warn_of_slow_parts(program.name, slow_parts([*self._forward_runs, *(b.run for b in self._backwards.values())]))

    @property
    def _before(self) -> tuple[Piece, ...]:
        """The pieces of the forward that come before the last answer."""
        return () if self.pieces is None else self.pieces.before

    @property
    def _forward_runs(self) -> list[Runner]:
        return [*(ask.piece.run for _, ask in self.asking), self.run_forward]

    def cut(self) -> None:
        """Hold on to nothing of the user's: no more of it is recorded."""
        self.on_backward, self.rerecord = lambda: None, None
        self.stage.recording.inputs.let_go()

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def _first_layouts(self) -> Layouts:
        """The layouts of the tangents for which the program of the stage has a backward."""
        assert self.stage.backward is not None
        return tuple(None if t is None else t.spec.stride for t in self.stage.backward.tangents)

    def _is_asked_for_first(self, known: Runner | None) -> bool:
        """Whether the backward of the program is compiled only when it is asked for: of several results, as of logits
        and a loss, often one alone is differentiated."""
        if self.stage.backward is None:
            return True
        if known is not None or self.sizes is not None or self.program.calling.backward_error is not None:
            return False
        return compiles(self._way.backend) and sum(stride is not None for stride in self._first_layouts) > 1

    @property
    def regions(self) -> tuple[Regions, ...]:
        """The regions of each half that its backend compiled by regions."""
        return tuple(run.regions for run in self.cut_runs if run.regions is not None)

    @property
    def cut_runs(self) -> list[Guarded]:
        """What runs the halves that were compiled by regions, forward first."""
        runs = [*self._forward_runs, *(b.run for b in self._backwards.values())]
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
        """What a backward unpacks just to see whether it was written: places among what the stage saved."""
        checks = program.calling.checks
        read = {c for saved in program.halves.saved for c in checks.readers.get(saved.name, ())}
        held = {self.counter_of(s): i for i, s in enumerate(self.halves.saved) if not self.is_read_past(s)}
        held |= {counter: len(self.halves.saved) + i for i, counter in enumerate(self.checks)}
        needed = {self._saved_keys.index(s.key) for s in program.halves.saved if s.key in self._saved_keys}
        return tuple(sorted({held[c] for c in checks.saved | read if c in held} - needed))

    def is_read_past(self, saved: Saved) -> bool:
        """Whether a saved value lies in a tensor of the caller's whose version eager would not look at."""
        counter = self.counter_of(saved) if saved.name not in self.halves.read_again else None
        return counter is not None and self.program.calling.checks.is_read_past(saved.name, counter)

    def counter_of(self, saved: Saved) -> int | None:
        """The version counter of the tensor that a saved value lies in, if the caller can see it."""
        calling, number = self.program.calling, None
        if saved.source == "input":
            lifted = calling.inputs[self.halves.inputs[saved.place]]
            number = lifted.alias.object if isinstance(lifted, TracedInput) else None
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
        layouts = self.tangents.layouts(tangents, self._strides)
        is_fine = layouts in self._backwards or len(self._backwards) < _MOST_LAYOUTS
        return layouts if is_fine else self.tangents.copied(tangents)

    @cached_property
    def tangents(self) -> Tangents:
        """What is known about tangents."""
        return Tangents(self._usual_layouts, compiles(self._way.backend))

    @cached_property
    def _usual_layouts(self) -> Layouts:
        return usual_layouts(self.stage.sources)

    def _strides(self, tangent: torch.Tensor, place: int) -> tuple[int, ...]:
        if self.sizes is None:
            return tangent.stride()
        return frozen_all(symbolic_strides(tangent, self.stage.sources[place].size()))

    def backward(self, layouts: Layouts) -> CompiledBackward:
        """The backward for tangents of these layouts."""
        with self._lock:
            is_new = layouts not in self._backwards
            if is_new:
                with undivided():
                    self._backwards[layouts] = self._record_backward(layouts)
                self._note_sizes(layouts)
            found = self._backwards[layouts]
        if found.error is not None:
            raise found.error.with_traceback(None)
        if is_new:
            self.on_backward()
        return found

    @property
    def own_backward(self) -> Runner | None:
        """What runs the backward of the program itself, if it is compiled."""
        found = None if self.stage.backward is None else self._backwards.get(self._first_layouts)
        return None if found is None or found.error is not None else found.run

    @property
    def kept_backwards(self) -> tuple[tuple[Layouts, CompiledBackward], ...]:
        """The backwards that were asked for so far, with the layouts of their tangents."""
        return tuple((layouts, found) for layouts, found in self._backwards.items() if found.error is None)

    def adopt(self, backwards: Sequence[tuple[Layouts, CompiledBackward]]) -> None:
        """Take over backwards of the same program that were kept."""
        with self._lock:
            self._backwards = {**dict(backwards), **self._backwards}

    def has_backward(self) -> bool:
        """Compile the backward of the program itself, if none was asked for so far; whether there is one."""
        if not self._backwards and self.stage.backward is not None and self.program.calling.backward_error is None:
            self.backward(self._first_layouts)
        return bool(self._backwards)

    def usual_backward(self) -> CompiledBackward | None:
        """The backward from all outputs; None if capture found that it raises. It may be compiled later."""
        layouts = self._usual_layouts
        found = self._backwards.get(layouts)
        if found is None and self.stage.backward is not None and self._first_layouts == layouts:
            found = self._described(self.program, Asked(self, layouts))
        return None if found is None or found.error is not None else found

    def _record_backward(self, layouts: Layouts) -> CompiledBackward:
        program = self.program
        if self.stage.backward is None or layouts != self._first_layouts:
            stage = replace(self.stage, survey=survey_of(self.stage, layouts))
            stage = replace(stage, backward=run_engine(stage, layouts))
            program = self._built(stage, lambda halves: halves.saved)
        if program.calling.backward_error is not None:
            return self._start_backward(program, program.halves)()
        with self._claim(program) as known:
            made = self._start_backward(program, program.halves, known.backward)()
            known.keep(self.run_forward if program is self.program else None, made.run)
        warn_of_slow_parts(program.name, slow_parts([made.run]))
        return made

    def _built(self, stage: Stage, wanted: Callable[[Halves], Sequence[Saved]]) -> Program:
        """A later program of the recording, which takes what this one keeps."""
        program = build(freeze(stage), self.program.name, stage.recording.recorder.table)
        program = program.apply(self._way.passes).marked_like(self.program)
        return program if program.calling.backward_error else fitted(program, self._kept, wanted, self.stage.phase)

    def _start_piece(self, piece: Piece, shared: SharedPieces) -> Callable[[], Ask]:
        """A piece is compiled if that pays; where sizes are asked, its ops run one by one. One that another path has
        too gives what either needs."""
        is_plain = piece.sizes_are_asked or piece.num_ops <= _FEW_OPS
        backend = compile_graph if is_plain else self._way.backend
        key = (piece.look, str(backend))
        known = shared.get(key)
        if known is not None and set(piece.wanted) <= set(known.gives):
            return lambda: Ask(known, piece.wanted)
        gives = tuple(dict.fromkeys((*(known.gives if known is not None else ()), *piece.wanted)))
        finish = start(backend, piece.giving(gives), "ask")

        def finished() -> Ask:
            made = shared.setdefault(key, SharedPiece(run := finish(), gives, piece.look))
            made.now = run, gives
            return Ask(made, piece.wanted)

        return finished

    def _start(self, graph: fx.GraphModule, name: str, known: Runner | None) -> Callable[[], Runner]:
        if known is not None:
            return lambda: known
        with nullcontext() if self.sizes is None else self.sizes.because("compiled so"):
            return start(self._way.backend, graph, name)

    def _start_backward(
        self, program: Program, halves: Halves, known: Runner | None = None
    ) -> Callable[[], CompiledBackward]:
        error = program.calling.backward_error or self._unseen(program)
        if error is not None:
            refused = CompiledBackward(lambda *_: (), (), 0, (), (), (), error)
            return lambda: refused
        run = self._start(halves.backward, "backward", known)
        return lambda: self._described(program, run())

    def _unseen(self, program: Program) -> BackwardError | None:
        """The error of a backward that takes inputs as it finds them which this stage does not hold on to."""
        if set(program.calling.live) <= set(self.program.calling.live):
            return None
        return BackwardError(
            f"this backward of {self.name} writes to inputs that the backward from all results leaves alone.\n"
            "Run this part without foregrad."
        )

    def _described(self, program: Program, run: Runner | Asked) -> CompiledBackward:
        """What runs the backward of a program, with how it is called."""
        calling, signature, halves = program.calling, program.signature, program.halves
        inputs = [signature.inputs[i] for i in halves.tangents]
        written = [i for i in halves.gradients if signature.outputs[i].role == "write in backward"]
        strides = tuple(i.spec.stride for i in inputs if i.role == "tangent")
        numbers = tuple(calling.inputs[i] for i in halves.numbers)
        return CompiledBackward(
            run=run,
            saved=tuple(self._saved_keys.index(s.key) for s in halves.saved),
            num_gradients=len(halves.gradients) - len(written),
            strides=strides,
            checks=self.checks_of(program),
            live=tuple(map(self.program.calling.live.index, calling.live)),
            writes=tuple(self.program.calling.live.index(calling.outputs[i]) for i in written),
            wholes=calling.wrapping.gradients,
            at=self._formulas((strides, numbers)),
        )

    def run_backward(self, saved: Any, tangents: Sequence[Any], live: Sequence[Any], dims: Dims) -> list[Any]:
        """Gradients for the slots of the stage, from the tangents that are defined."""
        layouts = self.layouts_of(tangents)
        found = self.backward(layouts)
        if (failing := self._failing(layouts, dims)) is not None:
            return self._rerecorded(failing, dims).run_backward(saved, tangents, live, dims)
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

    def _rerecorded(self, failing: Assumed, dims: Dims) -> CompiledStage:
        if self.rerecord is None:
            raise BackwardError(
                f"this backward was recorded where {failing.text}, which does not hold now.\n  {failing.line}\n"
                "Compile with dynamic=False."
            )
        return self.rerecord(dims)

    @cached_property
    def at(self) -> Callable[[Dims], Any]:
        """For a stage whose forward is a backward: the strides of its tangents in a call, and its inputs that are
        numbers; None for those that are tangents."""
        assert self.stage.earlier is not None
        strides = tuple(t.spec.stride for t in self.stage.earlier.tangents if t is not None)
        numbers = tuple(self.program.calling.inputs[i] for i in self.halves.inputs)
        return self._formulas((strides, numbers)) or (lambda dims: (strides, numbers))

    def _formulas(self, value: Any) -> Callable[[Dims], Any] | None:
        """What computes a value from the sizes and numbers of a call; None where none vary."""
        is_fixed = self.sizes is None and not self.numbers
        return None if is_fixed else formulas(self.sizes, repr(value), self.numbers)

    def next_stage(self, tangents: Sequence[Any], dims: Dims) -> CompiledStage:
        """The stage whose forward is this stage's backward, for tangents some of which can be differentiated."""
        layouts, differentiable = self.layouts_of(tangents), tuple(t is not None and t.requires_grad for t in tangents)
        with self._lock:
            key = (layouts, differentiable)
            if key not in self._nexts:
                with undivided():
                    self._nexts[key] = self._record_next(layouts, differentiable)
                self._note_sizes(key)
        failing = self._failing(key, dims)
        return self._nexts[key] if failing is None else self._rerecorded(failing, dims).next_stage(tangents, dims)

    def _record_next(self, layouts: Layouts, differentiable: tuple[bool, ...]) -> CompiledStage:
        stage = self.stage
        earlier = run_engine(stage, layouts, differentiable)
        if earlier.error is not None:
            raise earlier.error
        following = replace(
            stage,
            survey=survey_of(stage, layouts),
            earlier=earlier,
            phase=stage.phase + 1,
            slots=(*stage.slots, *(t.ghost for t in earlier.tangents if t is not None and t.ghost.requires_grad)),
            sources=tuple(g for g in earlier.gradients if g is not None and g.requires_grad),
            backward=None,
        )
        if following.sources:
            refuse_late(following)
            following = replace(following, backward=run_engine(following, usual_layouts(following.sources)))
        program = self._built(following, lambda halves: halves.kept)
        refuse_nonlinear(following, program)
        return CompiledStage(following, program, self._way, claim=self._claim)
