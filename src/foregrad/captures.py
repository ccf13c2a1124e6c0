"""Captures: one captured program, compiled, and the generated call that guards and runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.capture import Captured
from foregrad.dynamic import Conditions
from foregrad.functionalize.effects import Copy
from foregrad.keep.warm import Origin, claimed_halves
from foregrad.keys.ingredients import Key
from foregrad.keys.sources import Sources
from foregrad.program.program import Program
from foregrad.regions.regions import region_notes
from foregrad.runtime.call import CallWriter
from foregrad.runtime.guards import Assumptions, GuardWriter
from foregrad.runtime.halves import CompiledStage, Way
from foregrad.runtime.miss import MISS
from foregrad.runtime.source import Source
from foregrad.words.generated import generated_of
from foregrad.words.progress import Timings


@dataclass(frozen=True, eq=False)
class Capture:
    """One captured program: what made it necessary, where it comes from, and its generated call."""

    reason: str
    call: Callable[[Any, Any], Any]
    description: dict[str, str]  # what was assumed, in words
    timings: Timings
    origin: Origin
    num_nodes: int
    listing: Callable[[], str]
    record: Callable[[], CompiledStage]
    sources: Sources | None = None  # what it was looked for by
    program_key: Key | None = None
    conditions: Conditions | None = None  # where sizes vary

    @property
    def stage(self) -> CompiledStage:
        """The recording with its compiled halves; one that was found without tracing is traced now."""
        return self.record()

    @property
    def program(self) -> Program:
        return self.stage.program

    @property
    def source(self) -> str:
        """The text of the generated call."""
        generated = generated_of(self.call)
        assert generated is not None
        return generated.text

    def __str__(self) -> str:
        """The listing of the program, with a line where each call of a region begins."""
        return self.listing()


def make_capture(
    captured: Captured,
    way: Way,
    program: Program,
    args: Any,
    kwargs: Any,
    description: dict[str, str],
    reason: str,
    timings: Timings,
    origin: Origin,
) -> Capture:
    """Compile a program, and write the call that guards and runs it."""
    source, sizes = Source(), captured.stage.recording.sizes
    source.namespace["MISS"] = MISS
    with claimed_halves(way.cache, program, way, origin) as halves:
        with source.block("def call(args, kwargs):"):
            GuardWriter(assumptions_of(captured, program, args, kwargs), source).write()
            compiled = CompiledStage(captured.stage, program, way, (halves.forward, halves.backward))
            CallWriter(compiled).write(source, grad_enabled=torch.is_grad_enabled())
        halves.keep(compiled)
    captured.release()
    conditions = None if sizes is None else Conditions.of(sizes)
    return Capture(
        reason=reason,
        call=source.load("call"),
        description=description,
        timings=timings,
        origin=halves.origin,
        num_nodes=len(program.graph.graph.nodes),
        listing=lambda: program.listing(region_notes(program.graph.graph, compiled.regions[:2])),
        record=lambda: compiled,
        program_key=halves.key,
        conditions=conditions,
    )


def assumptions_of(captured: Captured, program: Program, args: Any, kwargs: Any) -> Assumptions:
    """What the guards of a call check."""
    calling, inputs = program.calling, captured.stage.recording.inputs
    return Assumptions(
        args=args,
        kwargs=kwargs,
        lifted=tuple(inputs.all),
        outer=tuple(inputs.outer),
        locations=captured.locations,
        modules=captured.modules,
        variables=captured.variables,
        generators=captured.generators,
        checks_overlap=any(isinstance(step, Copy) for step in calling.effects.steps) or bool(calling.live),
        offset_sensitive=calling.offset_sensitive,
        grads=captured.stage.recording.grads.assumed(),
        unhooked=frozenset(captured.stage.recording.grads.accumulated),
        unread=frozenset(calling.replaced_grads.values()),
        declared=captured.declared,
        numbers=captured.numbers,
        sizes=captured.stage.recording.sizes,
    )
