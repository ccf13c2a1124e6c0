"""Compile: a function or module that runs its captured programs, and captures a new one when it must."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from foregrad.capture import Captured, capture_call
from foregrad.check import Checker, Compared, Verification
from foregrad.errors import CannotKeep, CaptureError
from foregrad.functionalize.effects import Copy
from foregrad.keep.artifact import KeptCapture
from foregrad.keep.artifact import save as save_artifact
from foregrad.keep.trust import Signer as Key
from foregrad.program.program import Program
from foregrad.record.origins import definition
from foregrad.regions.regions import Regions, region_notes
from foregrad.runtime.call import CallWriter
from foregrad.runtime.guards import Assumptions, GuardWriter
from foregrad.runtime.halves import CompiledStage, Way
from foregrad.runtime.miss import MISS
from foregrad.runtime.reasons import describe_call, reason_for
from foregrad.runtime.source import Source
from foregrad.substrate import under_foreign_control
from foregrad.words.progress import Timings, part, watched


@dataclass(frozen=True, eq=False)
class Capture:
    """One captured program: what made it necessary, and its generated call."""

    reason: str
    program: Program
    call: Callable[[Any, Any], Any]
    source: str
    description: dict[str, str]  # what was assumed, in words
    stage: CompiledStage
    timings: Timings

    def __str__(self) -> str:
        """The listing of the program, with a line where each call of a region begins."""
        return self.program.listing(region_notes(self.program.graph.graph, self.stage.regions[:2]))


class Compiled:
    """A function that runs its captured programs."""

    def __init__(self, target: Any, way: Way) -> None:
        functools.update_wrapper(self, target, updated=())
        self.name = getattr(target, "__qualname__", type(target).__name__)
        self._target = target
        self.way = way
        self._lock = threading.RLock()
        self.captures: tuple[Capture, ...] = ()
        self._calls: tuple[Callable[[Any, Any], Any], ...] = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if under_foreign_control():
            return self._target(*args, **kwargs)
        for call in self._calls:
            result = call(args, kwargs)
            if result is not MISS:
                return result
        return self._capture(args, kwargs)

    def _capture(self, args: Any, kwargs: Any) -> Any:
        with self._lock:
            for call in self._calls:  # another thread may have captured it meanwhile
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            made = self._new_capture(args, kwargs, self.way)
            self.captures = (*self.captures, made)
            self._calls = (made.call, *self._calls)
        result = made.call(args, kwargs)
        if result is MISS:
            raise CaptureError(
                f"{self.name} changes a variable, a list or an attribute that it also reads, so no program of it holds "
                f"for a second call.\n{definition(self._target)}\nPass the value as an argument; return the new one."
            )
        return result

    def _new_capture(self, args: Any, kwargs: Any, way: Way) -> Capture:
        timings = Timings()
        with watched(timings, self.name, show=way.shows_progress):
            with part("record"):
                captured = self._record(args, kwargs)
            with part("passes"):
                program = captured.program.apply(way.passes)
            description = describe_call(captured)
            reason = reason_for(description, [c.description for c in self.captures])
            return self._make(captured, way, program, args, kwargs, description, reason, timings)

    def _make(self, captured: Captured, way: Way, *rest: Any) -> Capture:
        return make_capture(captured, way, *rest)

    def _record(self, args: Any, kwargs: Any) -> Captured:
        return capture_call(self._target, args, kwargs)

    def verify(self, /, *args: Any, **kwargs: Any) -> Verification:
        """Compare a call with the same ops run one by one on the same data; nothing is written, no generator moves.

        Backward is compared too, on random tangents. Where the two differ by more than rounding explains, the first op
        that does is named.
        """
        checker = Checker(self.way.backend)
        made = self._new_capture(args, kwargs, replace(self.way, backend=checker))
        checker.program = made.program
        try:
            made.call(args, kwargs)
        except Compared:
            return Verification(self.name, tuple(checker.differences), checker.first_op)
        raise CaptureError(f"{self.name} runs no program on these arguments, so there is nothing to compare.")

    def save(self, path: str | Path, *, weights: bool = True, key: Key | None = None) -> None:
        """Write the programs captured so far into a file, from which `fg.load` runs them in a new process.

        With `weights` the file also holds the parameters, buffers and optimizer state, so that no model code is needed.
        `key` signs it.
        """
        if not self.captures:
            raise CannotKeep(f"{self.name} has captured no program yet, so there is nothing to save.\nCall it once.")
        kept = [KeptCapture(c.call, c.program, str(c), c.reason, c.timings) for c in self.captures]
        save_artifact(Path(path), self._kind, self.name, kept, self._state(), weights=weights, signer=key)

    _kind = "function"

    def _state(self) -> tuple[Any, ...]:
        """The modules, optimizers and tensors whose contents the programs read and write."""
        return ()

    @property
    def timings(self) -> Timings:
        """Where the time of all captures went."""
        return Timings([p for made in self.captures for p in made.timings.parts])

    @property
    def regions(self) -> tuple[Regions, ...]:
        """The regions of every graph that was compiled by regions, forward before backward."""
        return tuple(found for made in self.captures for found in made.stage.regions)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)


def make_capture(
    captured: Captured,
    way: Way,
    program: Program,
    args: Any,
    kwargs: Any,
    description: dict[str, str],
    reason: str,
    timings: Timings,
) -> Capture:
    """Compile a program, and write the call that guards and runs it."""
    calling, inputs = program.calling, captured.stage.recording.inputs
    assumptions = Assumptions(
        args=args,
        kwargs=kwargs,
        lifted=tuple(inputs.all),
        locations=captured.locations,
        modules=captured.modules,
        variables=captured.variables,
        checks_overlap=any(isinstance(step, Copy) for step in calling.effects.steps) or bool(calling.live),
        offset_sensitive=calling.offset_sensitive,
        grads=captured.stage.recording.grads.assumed(),
        unhooked=frozenset(captured.stage.recording.grads.accumulated),
        unread=frozenset(calling.replaced_grads.values()),
        declared=captured.declared,
        numbers=captured.numbers,
    )
    source = Source()
    source.namespace["MISS"] = MISS
    with source.block("def call(args, kwargs):"):
        GuardWriter(assumptions, source).write()
        compiled = CompiledStage(captured.stage, program, way)
        CallWriter(compiled).write(source, grad_enabled=torch.is_grad_enabled())
    captured.release()
    return Capture(reason, program, source.load("call"), str(source), description, compiled, timings)
