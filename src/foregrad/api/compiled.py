"""Compile: a function or module that runs its captured programs, and captures a new one when it must."""

from __future__ import annotations

import copy
import functools
import sys
import types
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foregrad.api.captured import Capture, warn_of_many, warn_of_python, with_another
from foregrad.api.warm_starts import WarmStarts
from foregrad.cache.serialize.cached_calls import CAPTURED, CaptureOrigin
from foregrad.core.errors import CannotKeep, CaptureError
from foregrad.process.forks import lock, undivided
from foregrad.process.heap import return_memory_of_dropped
from foregrad.process.progress import Timings, part, watched
from foregrad.record.tracebacks import readable
from foregrad.runtime.guards.dispatch import FEW, Dispatch
from foregrad.runtime.options import Options
from foregrad.runtime.sentinels import MISS
from foregrad.torch_private.dispatch import under_foreign_control

if TYPE_CHECKING:
    from foregrad.api.capture import Captured
    from foregrad.api.dynamic import Dynamic
    from foregrad.api.rerecord_sizes import RerecordSizes
    from foregrad.api.verify_call import Verification
    from foregrad.cache.format.keys import Signer
    from foregrad.record.symbols.dimensions import Dimensions
    from foregrad.regions.regions import Regions
    from foregrad.runtime.compiled_stage import CompiledStage


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
            if len(calls) > FEW:
                result = self._dispatch.run(calls, args, kwargs)
                return result if result is not MISS else self._capture(args, kwargs)
            for call in calls:
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            return self._capture(args, kwargs)
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise readable(error)  # noqa: B904  # the same

    def _capture(self, args: Any, kwargs: Any) -> Any:
        with self._lock:
            for made in self.captures:
                made.python.forget_why()
            for call in self._calls:  # another thread may have captured it meanwhile
                result = call(args, kwargs)
                if result is not MISS:
                    return result
            warn_of_many(self.name, [made.reason for made in self.captures], self._advice)
            with undivided():
                lookup = self._lookup(args, kwargs)
                found = self._find(lookup, args, kwargs)
            if isinstance(found, Capture):
                result = found.call(args, kwargs)
                if result is not MISS:
                    self._add(found)
                    self._tell_again(found, args, kwargs)
                    return result
                self._passed_over.add(found.call)
                found = replace(found.origin, how=CAPTURED, where="", reasons=("a guard of the entry fails",))
            with undivided():
                made = self._best_capture(args, kwargs, found)
                made, to_keep = self._to_keep(lookup, made)
            self._add(made)
        result = made.call(args, kwargs)
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

    def _add(self, made: Capture) -> None:
        """Have a capture for later calls, unless what the function read has changed by its own doing."""
        if not made.once:
            self._calls = (made.call, *self._calls)
        self.captures = with_another(self.captures, made)

    # -- capturing --------------------------------------------------------------------------------------

    @functools.cached_property
    def _dynamic(self) -> Dynamic:
        """What is known about sizes that vary."""
        from foregrad.api.dynamic import Dynamic

        return Dynamic(self.options.dynamic)

    def _best_capture(self, args: Any, kwargs: Any, origin: CaptureOrigin) -> Capture:
        """A capture with sizes that vary where they shall and can, else one for these sizes alone."""
        if self.options.dynamic is False:
            return self._new_capture(args, kwargs, self.options, origin)
        from foregrad.api.dynamic import NOT_KEPT

        plan, made, refusal = self._dynamic.plan(self._target, args, kwargs), None, ""
        if plan.dims:
            try:
                options = replace(self.options, cache=None)
                found = (
                    replace(origin, reasons=(*origin.reasons, NOT_KEPT)) if self.options.cache is not None else origin
                )
                made = self._new_capture(args, kwargs, options, found, plan.dims)
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

        quiet, fresh = replace(options, shows_progress=False), self._without_captures()
        return RerecordSizes(captured.stage.recording, args, kwargs, lambda a, k: fresh._stage_of(a, k, quiet, dims))

    def _make(self, captured: Captured, options: Options, *rest: Any) -> Capture:
        from foregrad.api.assemble import make_capture

        return make_capture(captured, options, *rest)

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        from foregrad.api.capture import capture_call

        return self._told(capture_call(self._target, args, kwargs, varying=dims))

    def _told(self, captured: Captured) -> Captured:
        """A capture, after what it does in Python and its program does not was named."""
        if self._python != "allow":
            warn_of_python(self.name, captured.changes, self._named, self._instead)
        return captured

    def _tell_again(self, found: Capture, args: Any, kwargs: Any) -> None:
        """Say of a call that was found in a cache what its capture has said in another process."""
        if self._python != "allow":
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
        if any(made.edits for made in self.captures):
            raise CannotKeep(f"{self.name} changes lists or dicts that it is given, which a file cannot hold.")
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
    _python = "warn"  # what the function does in Python and its program does not
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
