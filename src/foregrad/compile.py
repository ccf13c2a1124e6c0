"""Compile: a function or module that runs its captured programs, and captures a new one when it must."""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foregrad.again import Again, can_be_made_again
from foregrad.captures import Capture, warn_of_many
from foregrad.errors import CannotKeep, CaptureError
from foregrad.keep.places import Places
from foregrad.keep.warm import CAPTURED, FoundCall, Origin, find_call, keep_call
from foregrad.keys.environment import environment_of
from foregrad.keys.ingredients import Key, differences
from foregrad.keys.sources import Sources, sources_of
from foregrad.record.tracebacks import readable
from foregrad.runtime.miss import MISS
from foregrad.runtime.way import Way
from foregrad.substrate import under_foreign_control
from foregrad.words.progress import Timings, part, watched

if TYPE_CHECKING:
    from foregrad.capture import Captured
    from foregrad.check import Verification
    from foregrad.dynamic import Dynamic
    from foregrad.entries.trust import Signer
    from foregrad.record.sizes import Dimensions
    from foregrad.regions.regions import Regions
    from foregrad.runtime.halves import CompiledStage
    from foregrad.twins import Twins


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
        self._wrong: dict[str, Origin] = {}  # keys whose entries hold another program

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if under_foreign_control():
            return self._target(*args, **kwargs)
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            for call in self._calls:
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            return self._capture(args, kwargs)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise readable(error)  # noqa: B904  # the same

    def _capture(self, args: Any, kwargs: Any) -> Any:
        with self._lock:
            for made in self.captures:
                made.python.why = None
            for call in self._calls:  # another thread may have captured it meanwhile
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            warn_of_many(self.name, [made.reason for made in self.captures], self._advice)
            sources = self._sources(args, kwargs)
            found = self._find(sources, args, kwargs)
            if isinstance(found, Capture):
                result = found.call(args, kwargs)
                if result is not MISS:
                    self._add(found)
                    if self.way.dynamic is not False:
                        self._dynamic.add(self._dynamic.plan(self._target, args, kwargs))
                    return result
                found = replace(found.origin, how=CAPTURED, where="", reasons=("a guard of the entry fails",))
            made = self._best_capture(args, kwargs, found)
            self._add(made)
        result = made.call(args, kwargs)
        if result is MISS:
            from foregrad.record.origins import definition

            changed = f": {made.python.why}" if made.python.why else ""
            raise CaptureError(
                f"{self.name} changes a variable, a list or an attribute that it also reads, so no program of it holds "
                f"for a second call{changed}.\n{definition(self._target)}\nPass the value as an argument; return the "
                "new one."
            )
        self._keep(made, sources)
        made.stage.on_backward = lambda: self._keep(made, sources)
        return result

    def _add(self, made: Capture) -> None:
        self.captures = (*self.captures, made)
        self._calls = (made.call, *self._calls)

    # -- warm starts ------------------------------------------------------------------------------------

    def _sources(self, args: Any, kwargs: Any) -> Sources | None:
        """The key of the call from its sources; None where nothing is kept."""
        if self.way.cache is None:
            return None
        environment = environment_of(self.way, kind=self._kind, **self._options())
        found = sources_of(self._target, args, kwargs, state=self._state(), environment=environment)
        if can_be_made_again(args, kwargs):
            return found
        return replace(
            found, unsure=(*found.unsure, "an argument wraps others, has a history, or shares memory with another")
        )

    def _options(self) -> dict[str, Any]:
        """What changes a capture beside the target and its state."""
        return {"dynamic": self.way.dynamic}

    def _places(self) -> Places:
        return Places(self._state(), self._target)

    def _find(self, sources: Sources | None, args: Any, kwargs: Any) -> Capture | Origin:
        if sources is None:
            return Origin(CAPTURED)
        if not sources.is_sure:
            return Origin(
                CAPTURED, reasons=tuple(f"the sources do not say everything: {why}" for why in sources.unsure)
            )
        if sources.key.digest in self._wrong:
            return self._wrong[sources.key.digest]
        again = Again(self.name, args, kwargs, functools.partial(self._recorded, sources))
        found = find_call(self.way.cache, sources.key.digest, self._places(), again)
        if isinstance(found, Origin):
            return found
        about = found.about
        again.expected = about["contents"]
        if about["slow"]:
            from foregrad.runtime.fallbacks import warn_of_slow_parts

            warn_of_slow_parts(self.name, about["slow"])
        capture = Capture(
            reason=about["reason"],
            call=found.call,
            description=dict(about["description"]),
            timings=found.timings,
            origin=found.origin,
            num_nodes=about["nodes"],
            listing=lambda: str(about["program"]),
            record=again,
            find_regions=lambda: found.regions,
            sources=sources,
        )
        return self._checked(capture, found, args, kwargs) if self.way.cache.draws_check() else capture

    def _checked(self, capture: Capture, found: FoundCall, args: Any, kwargs: Any) -> Capture | Origin:
        """What was found, while a copy of this process looks whether a capture gives the same program now. Where a
        process cannot be copied, that is done first."""
        from foregrad.words.copies import can_be_copied, in_a_copy

        def compare() -> list[str]:
            return [str(one) for one in differences(found.program_key, self._key_of(args, kwargs))]

        if not can_be_copied():
            return self._settle(capture, compare())
        self.way.cache.watch(in_a_copy(compare, lambda answer: self._settle(capture, answer)))
        return capture

    def _key_of(self, args: Any, kwargs: Any) -> Key:
        """The key of the program that a capture gives; nothing is compiled."""
        from foregrad.keys.program_key import program_key
        from foregrad.words.threads import one_thread

        with one_thread():  # a copy of the process has no others
            captured = self._record(args, kwargs)
        return program_key(captured.program.apply(self.way.passes), self._way_of(captured))

    def _settle(self, found: Capture, answer: list[str] | Exception) -> Capture | Origin:
        """Take note of how a program that was found differs from what a capture gives. A wrong one is not used again:
        its entry is removed, and later calls are captured."""
        origin = found.origin
        if not answer or isinstance(answer, Exception):
            said = f"it could not be checked: {answer}" if answer else "checked: a capture gives the same program"
            told = replace(found, origin=replace(origin, reasons=(said,)))
            with self._lock:
                self.captures = tuple(told if one is found else one for one in self.captures)
            return told
        assert origin.key is not None
        with self._lock:
            wrong = Origin(CAPTURED, reasons=(f"the entry in {origin.where} holds another program",), key=origin.key)
            self._wrong[origin.key] = wrong
            self.captures = tuple(one for one in self.captures if one is not found)
            self._calls = tuple(call for call in self._calls if call is not found.call)
        stays = self.way.cache.delete(origin.key)
        done = f"The entry could not be removed: {stays}. Later" if stays else "The entry was removed. Later"
        lines = "\n".join(answer)
        self._warn(
            f"{self.name} was found in {origin.where} without tracing, but a capture gives another program:\n{lines}\n"
            f"{done} calls are captured. Its key does not see what has changed: say cache=False where it is compiled, "
            "and please report it."
        )
        return wrong

    def _warn(self, message: str) -> None:
        """Warn at the definition of the function: what is found out in the background belongs to no call."""
        code = getattr(inspect.unwrap(self._target), "__code__", None)
        if code is None:
            warnings.warn(message, stacklevel=2)
        else:
            warnings.warn_explicit(message, UserWarning, code.co_filename, code.co_firstlineno)

    def _recorded(self, sources: Sources, args: Any, kwargs: Any) -> tuple[CompiledStage, str]:
        made = self._new_capture(args, kwargs, self.way)
        made.stage.on_backward = lambda: self._keep(made, sources)
        return made.stage, made.contents

    def _keep(self, made: Capture, sources: Sources | None) -> None:
        """Leave a capture, which has run, to later processes."""
        from foregrad.runtime.fallbacks import slow_parts

        if sources is None or made.program_key is None or sources.key.digest in self._wrong:
            return
        about = {
            "name": self.name,
            "reason": made.reason,
            "origin": {"how": made.origin.how, "reasons": list(made.origin.reasons)},
            "program": str(made),
            "contents": made.contents,
            "description": [[name, text] for name, text in made.description.items()],
            "timings": [[p.name, p.seconds, p.depth] for p in made.timings.parts],
            "nodes": made.num_nodes,
            "slow": slow_parts(made.stage.cut_runs),
        }
        why = self._why_not_kept() or keep_call(
            self.way.cache, sources, self._places(), [made.call, *made.stage.cut_runs], made.program_key, about
        )
        reasons = (*made.origin.reasons, *([why] if why else []))
        told = replace(made, sources=sources, origin=replace(made.origin, reasons=reasons))
        with self._lock:
            self.captures = tuple(told if one is made else one for one in self.captures)

    def _why_not_kept(self) -> str | None:
        return None

    # -- capturing --------------------------------------------------------------------------------------

    @functools.cached_property
    def _dynamic(self) -> Dynamic:
        """What is known about sizes that vary."""
        from foregrad.dynamic import Dynamic

        return Dynamic(self.way.dynamic)

    def _best_capture(self, args: Any, kwargs: Any, origin: Origin) -> Capture:
        """A capture with sizes that vary where they shall and can, else one for these sizes alone."""
        if self.way.dynamic is False:
            return self._new_capture(args, kwargs, self.way, origin)
        from foregrad.dynamic import NOT_KEPT

        plan, made, refusal = self._dynamic.plan(self._target, args, kwargs), None, None
        if plan.dims:
            try:
                way = replace(self.way, cache=None)
                found = replace(origin, reasons=(*origin.reasons, NOT_KEPT)) if self.way.cache is not None else origin
                made = self._new_capture(args, kwargs, way, found, plan.dims)
            except Exception as error:  # noqa: BLE001  what the function itself raises, it raises below
                refusal = error
        made = made or self._new_capture(args, kwargs, self.way, origin)
        self._dynamic.add(plan, made.conditions, refusal)
        why = self._dynamic.why_fixed(plan)
        return replace(made, reason=(plan.reason or made.reason) + (f"; {why}" if why else ""))

    def _new_capture(
        self, args: Any, kwargs: Any, way: Way, origin: Origin | None = None, dims: Dimensions | None = None
    ) -> Capture:
        from foregrad.runtime.reasons import describe_call, reason_for

        timings = Timings()
        with watched(timings, self.name, show=way.shows_progress):
            with part("record"):
                captured = self._record(args, kwargs, dims)
            twins = self._twins(captured, args, kwargs, way, dims) if dims else None
            with part("passes"):
                program = captured.program.apply(way.passes)
            description = describe_call(captured)
            reason = reason_for(description, [c.description for c in self.captures], self._changed())
            made = self._make(
                captured, way, program, args, kwargs, description, reason, timings, origin or Origin(CAPTURED)
            )
            if twins is not None:
                made.stage.twin, twins.expected = twins, str(made.program)
            return made

    def _changed(self) -> list[str]:
        """What has changed in Python since each capture."""
        return [made.python.why for made in self.captures if made.python.why is not None]

    def _twins(self, captured: Captured, args: Any, kwargs: Any, way: Way, dims: Dimensions) -> Twins:
        from foregrad.twins import Twins

        quiet = replace(way, shows_progress=False)
        return Twins(
            captured.stage.recording, args, kwargs, lambda a, k: self._new_capture(a, k, quiet, dims=dims).stage
        )

    def _way_of(self, captured: Captured) -> Way:
        """How a captured program is made to run."""
        return self.way

    def _make(self, captured: Captured, way: Way, *rest: Any) -> Capture:
        from foregrad.making import make_capture

        return make_capture(captured, way, *rest)

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        from foregrad.capture import capture_call

        return capture_call(self._target, args, kwargs, varying=dims)

    def verify(self, /, *args: Any, **kwargs: Any) -> Verification:
        """Compare a call with the same ops run one by one on the same data; nothing is written, no generator moves.

        Backward is compared too, on random tangents. Where the two differ by more than rounding explains, the first op
        that does is named.
        """
        from foregrad.check import Checker, Compared, Verification
        from foregrad.record.origins import definition

        checker = Checker(self.way.backend)
        made = self._new_capture(args, kwargs, replace(self.way, backend=checker))
        checker.program = made.program
        if made.program.signature.inputs_of("token", "token in backward"):
            raise CaptureError(
                f"{self.name} has ops with effects, which a comparison would run several times.\n"
                f"{definition(self._target)}\nLeave them out to compare the rest."
            )
        try:
            made.call(args, kwargs)
        except Compared:
            return Verification(self.name, tuple(checker.differences), checker.first_op)
        raise CaptureError(f"{self.name} runs no program on these arguments, so there is nothing to compare.")

    def save(self, path: str | Path, *, weights: bool = True, key: Signer | None = None) -> None:
        """Write the programs captured so far into a file, from which `fg.load` runs them in a new process.

        With `weights` the file also holds the parameters, buffers and optimizer state, so that no model code is needed.
        `key` signs it.
        """
        from foregrad.keep.artifact import KeptCapture
        from foregrad.keep.artifact import save as save_artifact

        if not self.captures:
            raise CannotKeep(f"{self.name} has captured no program yet, so there is nothing to save.\nCall it once.")
        kept = [KeptCapture(c.call, c.stage, str(c), c.reason, c.timings) for c in self.captures]
        save_artifact(Path(path), self._kind, self.name, kept, self._state(), weights=weights, signer=key)

    _kind = "function"
    _advice = (
        "Pass numbers that change as tensors, and let sizes vary with dynamic=True, or compile what stays the same."
    )

    def _state(self) -> tuple[Any, ...]:
        """The modules, optimizers and tensors whose contents the programs read and write."""
        return ()

    @property
    def origin(self) -> Origin | None:
        """Where the program that was needed last comes from: captured, or found in a cache."""
        return self.captures[-1].origin if self.captures else None

    @property
    def timings(self) -> Timings:
        """Where the time of all captures went."""
        return Timings([p for made in self.captures for p in made.timings.parts])

    @property
    def regions(self) -> tuple[Regions, ...]:
        """The regions of every graph that was compiled by regions, forward before backward."""
        return tuple(found for made in self.captures for found in made.regions)

    def __repr__(self) -> str:
        count = len(self.captures)
        return f"<compiled {self._kind} {self.name}: {count} program{'' if count == 1 else 's'}>"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)
