"""Assemble: from a captured program to compiled graphs, and the generated call that guards and runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from typing import Any

import torch

from foregrad.api.capture import Captured
from foregrad.api.captured import Capture
from foregrad.api.dynamic import Conditions
from foregrad.cache.serialize.cached_calls import CaptureOrigin
from foregrad.cache.serialize.programs import CompiledHalves, claimed_halves
from foregrad.core.source import Source
from foregrad.functionalize.effects import Write
from foregrad.process.progress import Timings
from foregrad.program.program import Program
from foregrad.record.freeze import traced
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.python.result_forms import ResultForm
from foregrad.record.trace import Trace
from foregrad.regions.regions import region_notes
from foregrad.runtime.call import CallWriter
from foregrad.runtime.compiled_stage import CompiledStage
from foregrad.runtime.guards.assumptions import Assumptions
from foregrad.runtime.guards.write_guards import GuardWriter
from foregrad.runtime.options import Options
from foregrad.runtime.questions import SharedPieces
from foregrad.runtime.sentinels import MISS, PYTHON


def make_capture(
    captured: Captured,
    options: Options,
    program: Program,
    args: Any,
    kwargs: Any,
    description: dict[str, str],
    reason: str,
    timings: Timings,
    origin: CaptureOrigin,
    shared: SharedPieces,
) -> Capture:
    """Compile a program, and write the call that guards and runs it. Paths of one function have `shared` pieces."""
    sizes = captured.stage.recording.sizes
    source = Source(has_sizes=sizes is not None)
    source.namespace["MISS"] = MISS
    with claimed_halves(options.cache, program, options, origin, has_sizes=sizes is not None) as halves:
        known = ", known=None" if program.calling.questions else ""
        with source.block(f"def call(args, kwargs{known}):"):
            guards = GuardWriter(assumptions_of(captured, program, *captured.given.tree), source)
            guards.write()
            compiled = CompiledStage(
                captured.stage,
                program,
                options,
                (halves.forward, halves.backward),
                partial(_claimed, options, origin, sizes is not None),
                shared,
            )
            guards.check_sizes()
            slots = [store.slot for store in captured.stage.stored]
            CallWriter(compiled, slots, guards.bound).write(source, grad_enabled=torch.is_grad_enabled())
        halves.keep(compiled.run_forward, compiled.own_backward)
        if not captured.reads.guard.check():  # what was read has changed meanwhile: a library was imported, say
            source.namespace[PYTHON] = captured.reads.now().guard
    if sizes is not None:
        sizes.refuse_late()
    conditions = None if sizes is None else Conditions.of(sizes)
    return Capture(
        reason=reason,
        call=with_form(source.load("call"), captured.form),
        description=description,
        timings=timings,
        origin=halves.origin,
        num_nodes=len(program.graph.graph.nodes),
        listing=lambda: program.listing(region_notes(program.graph.graph, compiled.regions[:2])),
        record=lambda: compiled,
        find_regions=lambda: compiled.regions,
        cut=compiled.cut,
        program_key=halves.key,
        conditions=conditions,
        does=captured.changes,
        not_kept=_not_kept(captured),
        questions=program.calling.questions,
        takes_numbers=bool(captured.given.numbers),
        numbers=(*captured.varying_numbers, *captured.constants),
        once=tuple(str(change).strip() for change in captured.once),
    )


def with_form(call: Callable[..., Any], form: ResultForm | None) -> Callable[..., Any]:
    """A call that returns what it was given, where the function does, and changes that as the function does."""
    if form is None:
        return call

    @wraps(call)
    def formed(args: Any, kwargs: Any, *known: Any) -> Any:
        values = call(args, kwargs, *known) if form.fits(args, kwargs) else MISS
        return MISS if values is MISS else form.apply(args, kwargs, values)

    return formed


def _not_kept(captured: Captured) -> str:
    """Why no file can hold a call: what its text does not say."""
    if captured.form is not None:
        return captured.form.why_special
    return "it takes objects with tensors" if captured.given.opened else ""


def _claimed(
    options: Options, origin: CaptureOrigin, has_sizes: bool, program: Program
) -> AbstractContextManager[CompiledHalves]:
    """The halves of a program of a capture whose backward is asked for later."""
    return claimed_halves(options.cache, program, options, origin, has_sizes=has_sizes)


def _checks_overlap(program: Program, trace: Trace) -> bool:
    """Whether a program relies on which inputs share memory: it writes, or reads one input by way of another."""
    calling = program.calling
    shared = Counter(one.alias.storage for one in trace.inputs)
    reads = any(shared[one.alias.storage] > 1 for one in trace.inputs if one.alias.object in calling.offset_sensitive)
    return (
        bool(trace.reshaped)
        or reads
        or any(isinstance(step, Write) for step in calling.effects.steps)
        or bool(calling.live)
    )


def assumptions_of(captured: Captured, program: Program, args: Any, kwargs: Any) -> Assumptions:
    """What the guards of a call check."""
    calling, trace, recording = program.calling, captured.trace, captured.stage.recording
    of, grads = partial(traced, recording), recording.grads
    inputs: list[Lifted | Outer] = [*recording.inputs.all, *recording.inputs.outer]
    apart = grads.beyond.assumed(list(grads.on_entry))
    return Assumptions(
        args=args,
        kwargs=kwargs,
        names=tuple(captured.arguments)[: len(args)],
        inputs=trace.inputs,
        wrappers=trace.wrapping.inputs,
        reals={of(one): one.real for one in inputs if one.real is not None},
        locations=captured.locations,
        modules=captured.modules,
        path=recording.modules.path,
        python=captured.reads.guard,
        keeps_order=captured.keeps_order,
        python_again=captured.reads.again,
        variables=captured.variables,
        generators=captured.generators,
        checks_overlap=_checks_overlap(program, trace),
        passed_by=trace.reshaped,
        offset_sensitive=calling.offset_sensitive,
        grads=tuple((of(o), of(g) if isinstance(g, (Lifted, Outer)) else g) for o, g in grads.assumed()),
        hooks={of(one): hooks for one, hooks in grads.expected_hooks().items()},
        has_attention=recording.intercept.has_attention,
        answers={recording.inputs.traced(one): said for one, said in recording.intercept.questions.answers.items()},
        apart=tuple((one.check, tuple(map(of, (one.lifted, *one.others)))) for one in apart),
        unread=frozenset(calling.replaced_grads.values()),
        declared=captured.declared,
        numbers=captured.numbers,
        given=recording.numbers.given,
        sizes=recording.sizes,
    )
