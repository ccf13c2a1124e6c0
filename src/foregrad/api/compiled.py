"""Compile: a function or module that runs its captured programs, and captures a new one when it must."""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foregrad.api.captured import (
    Capture,
    RaisedAfterEffects,
    question_of_many,
    warn_of_answers,
    warn_of_many,
    warn_of_python,
    warn_of_refusal,
    with_another,
)
from foregrad.api.warm_starts import WarmStarts
from foregrad.cache.serialize.cached_calls import CAPTURED, CaptureOrigin
from foregrad.core.errors import CannotKeep, CaptureError, CreatesState
from foregrad.process.forks import lock, undivided
from foregrad.process.heap import return_memory_of_dropped
from foregrad.process.progress import Timings, part, watched
from foregrad.record.tracebacks import readable
from foregrad.runtime.failures import failed_before_effects
from foregrad.runtime.guards.dispatch import FEW, Dispatch, look_of
from foregrad.runtime.options import Options
from foregrad.runtime.sentinels import MISS
from foregrad.torch_private.dispatch import under_foreign_control

if TYPE_CHECKING:
    from foregrad.api.capture import Captured
    from foregrad.api.dynamic import Dynamic
    from foregrad.api.rerecord_sizes import RerecordSizes
    from foregrad.api.varying_numbers import VaryingNumbers
    from foregrad.api.verify_call import Verification
    from foregrad.cache.format.keys import Signer
    from foregrad.cache.serialize.lookup import Lookup
    from foregrad.record.questions import Question
    from foregrad.record.symbols.varying import Dimensions
    from foregrad.regions.regions import Regions
    from foregrad.runtime.compiled_stage import CompiledStage
    from foregrad.runtime.questions import Known, SharedPieces


#: What Python does not copy.
_ATOMS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def compile_again(target: Any, options: Options) -> Compiled:
    """A compiled function from a pickle."""
    return Compiled(target, options.here())


class Compiled(WarmStarts):
    """A function that runs its captured programs."""

    def __init__(self, target: Any, options: Options) -> None:
        functools.update_wrapper(self, target, updated=())
        self.name = getattr(target, "__qualname__", type(target).__name__)
        self._target = target
        self.options = options
        self._lock = lock()
        self.captures: tuple[Capture, ...] = ()
        self._calls: tuple[Callable[[Any, Any], Any], ...] = ()
        self._dispatch = Dispatch()
        self._passed_over = weakref.WeakSet()
        self._wrong: dict[str, CaptureOrigin] = {}  # keys whose entries hold another program
        self._answers: Sequence[Question] | None = None  # what Python is told, where arguments have no data
        self._asking: frozenset[Callable[..., Any]] = frozenset()  # calls that are chosen by what the data are
        self._of_any_size: frozenset[Callable[..., Any]] = frozenset()  # calls in whose programs sizes vary
        self._shared_pieces: SharedPieces = {}
        self._num_calls: weakref.WeakKeyDictionary[Callable[[Any, Any], Any], int] = weakref.WeakKeyDictionary()
        self._as_it_is: set[Any] = set()  # what arguments look like for which the function itself runs
        self._has_warned = False  # that there would be a program for each call
        self._named: set[str] = set()  # what it does in Python that was spoken of

    def __del__(self) -> None:
        captures = self.__dict__.get("captures", ())  # none where the constructor has raised
        for made in captures:
            made.let_go()
        if captures:
            return_memory_of_dropped()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if under_foreign_control():
            return self._target(*args, **kwargs)
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            calls = self._calls
            if self._asking:
                return self._call_a_path(calls, args, kwargs)
            if len(calls) > FEW:
                result = self._dispatch.run(calls, args, kwargs)
                return result if result is not MISS else self._new_path(args, kwargs)
            for call in calls:
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            return self._new_path(args, kwargs)
        except Exception as error:  # noqa: BLE001  # it is raised again, here or by the function
            if not failed_before_effects(error):
                raise readable(error)  # noqa: B904  # the same
        return self._target(*args, **kwargs)

    def _call_a_path(self, calls: Sequence[Callable[..., Any]], args: Any, kwargs: Any) -> Any:
        """Run the program for what the data are. What was computed in order to find it is passed on; the path of this
        call is tried first next time."""
        known: Known = {}
        for place, call in enumerate(calls):
            result = call(args, kwargs, known) if call in self._asking else call(args, kwargs)
            if result is not MISS:
                self._num_calls[call] = self._num_calls.get(call, 0) + 1
                if place and self._lock.acquire(blocking=False):
                    try:
                        if call in self._calls:
                            self._calls = (call, *(one for one in self._calls if one is not call))
                    finally:
                        self._lock.release()
                return result
        return self._new_path(args, kwargs)

    def calls_of(self, made: Capture) -> int:
        """How many calls a captured program has served, where data choose the program."""
        return self._num_calls.get(made.call, 0)

    def _new_path(self, args: Any, kwargs: Any) -> Any:
        """A call for which there is no program: captured, or run as it is where that is of no use."""
        if self._as_it_is and look_of(args, kwargs, into_objects=True) in self._as_it_is:
            return self._target(*args, **kwargs)
        try:
            return self._capture(args, kwargs)
        except RaisedAfterEffects:
            return self._target(*args, **kwargs)
        except CaptureError as error:
            if self.options.refused == "error" or isinstance(error, CreatesState) or not error.leaves_no_trace:
                raise
            warn_of_refusal(self.name, error)
            self._as_it_is.add(look_of(args, kwargs, into_objects=True))
        return self._target(*args, **kwargs)

    def _capture(self, args: Any, kwargs: Any) -> Any:
        with self._lock:
            for made in self.captures:
                made.python.forget_why()
            for call in self._calls:  # another thread may have captured it meanwhile
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            warn_of_many(self.name, [made.reason for made in self.captures if not made.questions], self._advice)
            with undivided():
                lookup = self._lookup(args, kwargs)
            result, origin = self._run_found(lookup, args, kwargs)
            if result is MISS:
                with undivided():
                    of_any_size = self._lookup_of_any_size(args, kwargs)
                if of_any_size is not None:
                    result, _ = self._run_found(of_any_size, args, kwargs)
            if result is not MISS:
                return result
            with undivided():
                made = self._best_capture(args, kwargs, origin)
                made, to_keep = self._to_keep(lookup if made.conditions is None else of_any_size, made)
            self._add(made)
            self._count_answers(made, args, kwargs)
        result = made.call(args, kwargs)
        if made.questions:
            self._num_calls[made.call] = 1
        if result is MISS and made.questions:
            return self._target(*args, **kwargs)  # compiled code rounds otherwise than the ops by which it was captured
        if result is MISS:
            from foregrad.record.origins import definition

            changed = f": {made.python.why}" if made.python.why else ""
            raise CaptureError(
                f"{self.name} changes a variable, a list or an attribute that it also reads: its side effects "
                f"invalidate its own guards{changed}.\n{definition(self._target)}\nPass the value as an argument, and "
                "return the new one."
            )
        if to_keep is not None:
            with undivided():
                self._keep(to_keep)
            made.stage.on_backward = self._later(to_keep)
        return result

    def _run_found(self, lookup: Lookup | None, args: Any, kwargs: Any) -> tuple[Any, CaptureOrigin]:
        """The result of a call that is in the cache; MISS where there is none, and why."""
        with undivided():
            candidates = self._candidates(lookup)
            found = self._find(lookup, candidates, args, kwargs)
        missed: CaptureOrigin | None = None
        while isinstance(found, Capture):
            result = found.call(args, kwargs)
            if result is not MISS:
                self._add(found)
                self._num_calls[found.call] = 1
                self._tell_again(found, args, kwargs)
                if self.options.dynamic is not False:
                    self._dynamic.add(self._dynamic.plan(self._target, args, kwargs))
                return result, found.origin
            self._passed_over.add(found.call)
            missed = replace(found.origin, how=CAPTURED, where="", reasons=("a guard of the entry fails",))
            with undivided():
                found = self._find(lookup, candidates, args, kwargs)
        return MISS, missed or found

    def _count_answers(self, made: Capture, args: Any, kwargs: Any) -> None:
        """Give up on arguments like these where one question has got too many answers, and say so once."""
        line = question_of_many(made.questions, [one.questions for one in self.captures])
        if line is not None:
            if not self._has_warned:
                warn_of_answers(self.name, line)
            self._has_warned = True
            self._as_it_is.add(look_of(args, kwargs, into_objects=True))

    def _add(self, made: Capture) -> None:
        """Have a capture for later calls, unless what the function read has changed by its own doing. Programs for some
        sizes alone are tried before those for any: they are quicker."""
        if made.questions and not made.once:
            self._asking |= {made.call}
        if made.conditions is not None:
            self._of_any_size |= {made.call}
        if not made.once:
            calls = (made.call, *self._calls)
            self._calls = tuple(sorted(calls, key=lambda call: call in self._of_any_size))
        self.captures = with_another(self.captures, made)

    # -- capturing --------------------------------------------------------------------------------------

    @functools.cached_property
    def _dynamic(self) -> Dynamic:
        """What is known about sizes that vary."""
        from foregrad.api.dynamic import Dynamic

        return Dynamic(self.options.dynamic)

    @functools.cached_property
    def _numbers(self) -> VaryingNumbers:
        """What is known about numbers among the arguments."""
        from foregrad.api.varying_numbers import VaryingNumbers

        return VaryingNumbers()

    def _best_capture(self, args: Any, kwargs: Any, origin: CaptureOrigin) -> Capture:
        """A capture with sizes that vary where they shall and can, else one for these sizes alone."""
        if self.options.dynamic is False:
            return self._new_capture(args, kwargs, self.options, origin)
        plan, made, refusal = self._dynamic.plan(self._target, args, kwargs), None, ""
        if plan.dims:
            try:
                made = self._new_capture(args, kwargs, self.options, origin, plan.dims)
            except Exception as error:  # noqa: BLE001  what the function itself raises, it raises below
                refusal = str(error) or type(error).__name__
        made = made or self._new_capture(args, kwargs, self.options, origin)
        self._dynamic.add(plan, made.conditions, refusal)
        why = self._dynamic.why_fixed(plan)
        return replace(made, reason=(plan.reason or made.reason) + (f"; {why}" if why else ""), fixed=refusal)

    def _new_capture(
        self,
        args: Any,
        kwargs: Any,
        options: Options,
        origin: CaptureOrigin | None = None,
        dims: Dimensions | None = None,
    ) -> Capture:
        from foregrad.runtime.guards.reasons import describe_call, reason_for

        timings = Timings()
        with watched(timings, self.name, show=options.shows_progress):
            with part("record"):
                captured = self._record(args, kwargs, dims)
            rerecord = self._rerecord_sizes(captured, args, kwargs, options, dims) if dims else None
            with part("passes"):
                program = captured.program.apply(options.passes)
            description = describe_call(captured)
            reason = reason_for(description, [c.description for c in self.captures], self._changed())
            made = self._make(
                captured,
                options,
                program,
                args,
                kwargs,
                description,
                reason,
                timings,
                origin or CaptureOrigin(CAPTURED),
            )
            if rerecord is not None:
                made.stage.rerecord, rerecord.expected = rerecord, str(made.program)
            return made

    def _stage_of(self, args: Any, kwargs: Any, options: Options, dims: Dimensions) -> CompiledStage:
        made = self._new_capture(args, kwargs, options, dims=dims)
        self.captures = (*self.captures, made)
        return made.stage

    def _changed(self) -> list[str]:
        """What has changed in Python since each capture, or by its own doing."""
        return [why for made in self.captures if (why := "; ".join(made.once) or made.python.why)]

    def _rerecord_sizes(
        self, captured: Captured, args: Any, kwargs: Any, options: Options, dims: Dimensions
    ) -> RerecordSizes:
        from foregrad.api.rerecord_sizes import RerecordSizes
        from foregrad.api.varying_numbers import SameNumbers

        quiet, fresh = replace(options, shows_progress=False), self._without_captures()
        fresh._numbers = SameNumbers(captured.given.numbers)
        return RerecordSizes(captured.stage.recording, args, kwargs, lambda a, k: fresh._stage_of(a, k, quiet, dims))

    def _make(self, captured: Captured, options: Options, *rest: Any) -> Capture:
        from foregrad.api.assemble import make_capture

        return make_capture(captured, options, *(*rest, self._shared_pieces))

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        from foregrad.api.capture import capture_call

        numbers = self._numbers.plan(self._target, args, kwargs)
        captured = capture_call(self._target, args, kwargs, varying=dims, numbers=numbers, asks=self._asks(dims))
        return self._told(self._numbers.after(captured, numbers))

    def _asks(self, dims: Dimensions | None) -> bool | Sequence[Question]:
        """Whether Python may ask the data, or what it is told. Where sizes vary it may not ask, so far."""
        if self._answers is not None:
            return self._answers
        return self.options.questions == "tree" and not dims

    def _told(self, captured: Captured) -> Captured:
        """A capture, after what it does in Python and its program does not was named, or refused."""
        done = (*captured.changes, *captured.once)
        if self.options.python == "error" and done:
            from foregrad.record.origins import definition

            captured.objects.watched.outside.undo()
            said = "\n".join(map(str, done))
            raise CaptureError(
                f"the function does in Python what its program would not repeat:\n{said}\n{definition(self._target)}\n"
                "Do it outside, or in a function of fg.python, which runs at each call."
            )
        if self.options.python == "warn":
            warn_of_python(self.name, captured.changes, self._named, self._instead)
        return captured

    def _tell_again(self, found: Capture, args: Any, kwargs: Any) -> None:
        """Say of a call that was found in a cache what its capture has said in another process."""
        if self.options.python == "warn":
            warn_of_python(self.name, found.does, self._named, self._instead)
        if self.options.dynamic is not False:
            self._dynamic.add(self._dynamic.plan(self._target, args, kwargs), refusal=found.fixed)

    def verify(self, /, *args: Any, **kwargs: Any) -> Verification:
        """Compare a call with the same ops run one by one on the same data; nothing is written, no generator moves.

        Backward is compared too, on random tangents. Where the two differ by more than rounding explains, the first op
        that does is named.
        """
        from foregrad.api.verify_call import Checker, Compared, Verification
        from foregrad.record.origins import definition

        checker = Checker(self.options.backend)
        made = self._new_capture(args, kwargs, replace(self.options, backend=checker))
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
        It is signed by `key`, or by your own key, so that what you have saved yourself loads with its code.
        """
        from foregrad.cache.serialize.artifact import KeptCapture
        from foregrad.cache.serialize.artifact import save as save_artifact

        if not self.captures:
            raise CannotKeep(f"{self.name} has captured no program yet, so there is nothing to save.\nCall it once.")
        why = next((made.not_kept for made in self.captures if made.not_kept), "")
        if why:
            raise CannotKeep(f"{self.name} cannot be saved: {why}, which a file cannot hold.")
        kept = [KeptCapture(c.call, c.stage, str(c), c.reason, c.timings) for c in self.captures]
        save_artifact(Path(path), self._kind, self.name, kept, self._state(), weights=weights, key=key)

    # -- copies -----------------------------------------------------------------------------------------

    def __copy__(self) -> Compiled:
        """Functions and methods are not copied by Python; objects that can be called are."""
        target = self._target if isinstance(self._target, _ATOMS) else copy.copy(self._target)
        return self if target is self._target else Compiled(target, self.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Compiled:
        """What is bound to an object is bound to the copy of it, and captures programs of its own."""
        target = copy.deepcopy(self._target, memo)
        return self if target is self._target else Compiled(target, self.options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as functions do, by name, with the options: no program goes along."""
        return self.name if self._has_name() else (compile_again, (self._target, self.options))

    def _has_name(self) -> bool:
        """Whether it is what its module or class has under the name of the target: it was compiled by a decorator."""
        found: Any = sys.modules.get(getattr(self, "__module__", None) or "")
        for name in self.name.split("."):
            found = getattr(found, name, None)
        return found is self

    _kind = "function"
    _instead = "Do it outside."
    _advice = (
        "Pass numbers that change as tensors, and let sizes vary with dynamic=True, or compile what stays the same."
    )

    @property
    def origin(self) -> CaptureOrigin | None:
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
