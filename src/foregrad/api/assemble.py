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
from foregrad.record.lift.declared_state import Declared
from foregrad.record.lift.inputs import Lifted
from foregrad.record.python.container_arguments import Edits
from foregrad.record.results import reshaped_views
from foregrad.regions.regions import region_notes
from foregrad.runtime.call import CallWriter
from foregrad.runtime.compiled_stage import CompiledStage
from foregrad.runtime.guards.assumptions import Assumptions
from foregrad.runtime.guards.write_guards import GuardWriter
from foregrad.runtime.options import Options
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
) -> Capture:
    """Compile a program, and write the call that guards and runs it."""
    source, sizes = Source(), captured.stage.recording.sizes
    source.namespace["MISS"] = MISS
    with claimed_halves(options.cache, program, options, origin) as halves:
        with source.block("def call(args, kwargs):"):
            GuardWriter(assumptions_of(captured, program, args, kwargs), source).write()
            known = (halves.forward, halves.backward)
            compiled = CompiledStage(captured.stage, program, options, known, partial(_claimed, options, origin))
            CallWriter(compiled).write(source, grad_enabled=torch.is_grad_enabled())
        halves.keep(compiled.run_forward, compiled.own_backward)
        if not captured.looked.guard.check():  # what was read has changed meanwhile: a library was imported, say
            source.namespace[PYTHON] = captured.looked.now().guard
    captured.release()
    conditions = None if sizes is None else Conditions.of(sizes)
    return Capture(
        reason=reason,
        call=with_edits(source.load("call"), captured.edits),
        description=description,
        timings=timings,
        origin=halves.origin,
        num_nodes=len(program.graph.graph.nodes),
        listing=lambda: program.listing(region_notes(program.graph.graph, compiled.regions[:2])),
        record=lambda: compiled,
        find_regions=lambda: compiled.regions,
        cut=partial(_cut, compiled, captured.declared),
        program_key=halves.key,
        conditions=conditions,
        does=captured.changes,
        edits=captured.edits is not None,
        once=tuple(str(change).strip() for change in captured.once),
    )


def _cut(compiled: CompiledStage, declared: Declared) -> None:
    """Hold on to nothing of the user's: what was compiled is dropped."""
    compiled.cut()
    declared.let_go()
    for store in compiled.stage.stored:
        store.slot.let_go()


def with_edits(call: Callable[[Any, Any], Any], edits: Edits | None) -> Callable[[Any, Any], Any]:
    """A call that changes lists and dicts that it is given, as the function does."""
    if edits is None:
        return call

    @wraps(call)
    def edited(args: Any, kwargs: Any) -> Any:
        result = call(args, kwargs)
        if result is not MISS:
            edits.apply(args, kwargs)
        return result

    return edited


def _claimed(options: Options, origin: CaptureOrigin, program: Program) -> AbstractContextManager[CompiledHalves]:
    """The halves of a program of a capture whose backward is asked for later."""
    return claimed_halves(options.cache, program, options, origin)


def _checks_overlap(program: Program, inputs: list[Lifted]) -> bool:
    """Whether a program relies on which inputs share memory: it writes, or reads one input by way of another."""
    calling = program.calling
    shared = Counter(one.alias.storage for one in inputs)
    reads = any(shared[one.alias.storage] > 1 for one in inputs if one.alias.object in calling.offset_sensitive)
    return reads or any(isinstance(step, Write) for step in calling.effects.steps) or bool(calling.live)


def assumptions_of(captured: Captured, program: Program, args: Any, kwargs: Any) -> Assumptions:
    """What the guards of a call check."""
    calling, inputs, grads = program.calling, captured.stage.recording.inputs, captured.stage.recording.grads
    reshaped = reshaped_views(captured.stage.recording)
    return Assumptions(
        args=args,
        kwargs=kwargs,
        names=tuple(captured.arguments)[: len(args)],
        lifted=tuple(inputs.all),
        outer=tuple(inputs.outer),
        locations=captured.locations,
        modules=captured.modules,
        path=captured.stage.recording.modules.path,
        python=captured.looked.guard,
        keeps_order=captured.keeps_order,
        python_again=captured.looked.again,
        variables=captured.variables,
        generators=captured.generators,
        checks_overlap=_checks_overlap(program, inputs.all) or bool(reshaped),
        passed_by=frozenset(reshaped),
        offset_sensitive=calling.offset_sensitive,
        grads=grads.assumed(),
        hooks=grads.expected_hooks(),
        has_attention=captured.stage.recording.intercept.has_attention,
        answers=captured.stage.recording.intercept.questions.answers,
        apart=tuple(grads.beyond.assumed(list(grads.on_entry))),
        unread=frozenset(calling.replaced_grads.values()),
        declared=captured.declared,
        numbers=captured.numbers,
        sizes=captured.stage.recording.sizes,
    )
