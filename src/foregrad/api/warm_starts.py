"""Warm starts: a compiled function looks for its programs in a cache before it captures them, and leaves them there."""

from __future__ import annotations

import functools
import hashlib
import inspect
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from foregrad.api.captured import Capture
from foregrad.api.rerecord import Rerecord, not_made_again
from foregrad.cache.key.environment import environment_of_sources
from foregrad.cache.key.ingredients import Key, differences
from foregrad.cache.key.sources import Sources, sources_of
from foregrad.cache.serialize.cached_calls import (
    CAPTURED,
    NO_ENTRY,
    CaptureOrigin,
    FoundCall,
    find_call,
    in_doubt,
    keep_call,
)
from foregrad.cache.serialize.lookup import Lookup, ReadCall
from foregrad.cache.serialize.questions import digest_of_answers, questions_of, questions_to_json
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.process.forks import lock
from foregrad.record.lift.arguments import bind_arguments
from foregrad.runtime.guards.dispatch import Dispatch
from foregrad.runtime.options import Options

if TYPE_CHECKING:
    from foregrad.api.capture import Captured
    from foregrad.api.dynamic import KeptConditions
    from foregrad.record.python.side_effects import Change
    from foregrad.record.questions import Question
    from foregrad.record.symbols.varying import Dimensions
    from foregrad.runtime.compiled_stage import CompiledStage


@dataclass(frozen=True)
class ToKeep:
    """A capture that is left to later processes, and how it is looked for."""

    made: Capture
    lookup: Lookup
    call: ReadCall


class WarmStarts:
    """What is common to compiled functions and steps that a cache may hold."""

    _kind: str
    name: str
    options: Options
    captures: tuple[Capture, ...]
    _target: Any
    _lock: threading.RLock
    _calls: tuple[Callable[[Any, Any], Any], ...]
    _dispatch: Dispatch
    _answers: Sequence[Question] | None
    _wrong: dict[str, CaptureOrigin]  # keys whose entries hold another program
    _passed_over: weakref.WeakSet[
        Callable[..., Any]
    ]  # calls that were found, and whose guards say that they are for others

    # -- finding ----------------------------------------------------------------------------------------

    def _sources(self, args: Any, kwargs: Any, of_any_size: frozenset[int] = frozenset()) -> Sources | None:
        """The key of the call from its sources; None where nothing is kept."""
        if self.options.cache is None:
            return None
        environment = environment_of_sources(self.options, kind=self._kind, **self._in_key())
        found = sources_of(
            self._target, args, kwargs, state=self._state(), environment=environment, of_any_size=of_any_size
        )
        return replace(found, unsure=(*found.unsure, *not_made_again(bind_arguments(self._target, args, kwargs))))

    def _in_key(self) -> dict[str, Any]:
        """What changes a capture beside the target and its state."""
        found = {one: getattr(self.options, one) for one in ("questions", "python")}
        return {"dynamic": str(self.options.dynamic), **found}

    def _places(self) -> StatePlaces:
        return StatePlaces(self._state(), self._target, hooks=True)

    def _lookup(self, args: Any, kwargs: Any, of_any_size: frozenset[int] = frozenset()) -> Lookup | None:
        sources = self._sources(args, kwargs, of_any_size)
        if sources is None:
            return None
        is_second = bool(of_any_size)
        return Lookup(self.options.cache, self.name, sources, self._target, args, kwargs, self._state(), is_second)

    def _lookup_of_any_size(self, args: Any, kwargs: Any) -> Lookup | None:
        """Where programs are looked for and left in which sizes of arguments vary; None where there are none."""
        if self.options.dynamic is False or self.options.cache is None:
            return None
        from foregrad.api.dynamic import of_any_size

        found = of_any_size(args, kwargs)
        return self._lookup(args, kwargs, found) if found else None

    def _candidates(self, lookup: Lookup | None) -> Iterator[ReadCall] | CaptureOrigin:
        """Where the call may be; why nowhere, if so. Of a function that asks the data there is one for each path."""
        if lookup is None:
            return CaptureOrigin(CAPTURED)
        if (doubt := in_doubt(lookup.sources)) is not None:
            return doubt
        found = lookup.candidates()
        return CaptureOrigin(CAPTURED, reasons=(f"{NO_ENTRY}: {found}",)) if isinstance(found, str) else found

    def _find(
        self, lookup: Lookup | None, candidates: Iterator[ReadCall] | CaptureOrigin, args: Any, kwargs: Any
    ) -> Capture | CaptureOrigin:
        """The next of the candidates that there is; why the call must be captured, if there is none."""
        if lookup is None or isinstance(candidates, CaptureOrigin):
            return candidates if isinstance(candidates, CaptureOrigin) else CaptureOrigin(CAPTURED)
        missed: Capture | CaptureOrigin | None = None
        for call in candidates:
            missed = in_doubt(call.sources) or self._found(lookup, call, args, kwargs)
            if isinstance(missed, Capture):
                break
        return missed or CaptureOrigin(CAPTURED)

    def _found(self, lookup: Lookup, call: ReadCall, args: Any, kwargs: Any) -> Capture | CaptureOrigin:
        if call.key in self._wrong:
            return self._wrong[call.key]
        fresh = self._without_captures()
        record = functools.partial(fresh._recorded, lookup.once_made(), call, dims := {})
        again = Rerecord(self.name, args, kwargs, record)
        found = find_call(self.options.cache, call.key, self._places(), again)
        if isinstance(found, CaptureOrigin):
            return found
        about = found.about
        fresh._answers = questions = questions_of(about["questions"])
        again.expected = about["contents"]
        dims.update(_dims_from_json(about["dims"]))
        if about["slow"]:
            from foregrad.runtime.fallback_warnings import warn_of_slow_parts

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
            cut=again.cut,
            sources=call.sources,
            does=_changes(about["does"]),
            fixed=about["fixed"],
            questions=questions,
            conditions=_kept_conditions(tuple(map(str, about["conditions"])), dims),
        )
        return self._checked(capture, found, args, kwargs) if self.options.cache.draws_check() else capture

    # -- checking ---------------------------------------------------------------------------------------

    def _checked(self, capture: Capture, found: FoundCall, args: Any, kwargs: Any) -> Capture | CaptureOrigin:
        """What was found, while a copy of this process looks whether a capture gives the same program now. Where a
        process cannot be copied, that is done first."""
        from foregrad.process.forked_copy import can_be_copied, in_a_copy

        def compare() -> list[str]:
            dims = capture.conditions.dims if capture.conditions is not None else {}
            return [str(one) for one in differences(found.program_key, self._key_of(args, kwargs, dims))]

        if not can_be_copied():
            return self._settle(capture, compare())
        self.options.cache.watch(in_a_copy(compare, lambda answer: self._settle(capture, answer)))
        return capture

    def _key_of(self, args: Any, kwargs: Any, dims: Dimensions) -> Key:
        """The key of the program that a capture gives; nothing is compiled."""
        from foregrad.cache.key.program_key import program_key
        from foregrad.process.threads import one_thread

        with one_thread():  # a copy of the process has no others
            captured = self._record(args, kwargs, dims or None)
        return program_key(captured.program.apply(self.options.passes), self._options_of(captured))

    def _settle(self, found: Capture, answer: list[str] | Exception) -> Capture | CaptureOrigin:
        """Take note of how a program that was found differs from what a capture gives. A wrong one is not used again:
        its entry is removed, and later calls are captured. One whose guards tell it from the call may differ."""
        origin = found.origin
        if not answer or isinstance(answer, Exception):
            said = f"it could not be checked: {answer}" if answer else "checked: a capture gives the same program"
            told = replace(found, origin=replace(origin, reasons=(said,)))
            with self._lock:
                self.captures = tuple(told if one is found else one for one in self.captures)
            return told
        assert origin.key is not None
        with self._lock:  # which the call holds that has found it
            if found.call in self._passed_over:
                return origin
            wrong = CaptureOrigin(
                CAPTURED, reasons=(f"the entry in {origin.where} holds another program",), key=origin.key
            )
            self._wrong[origin.key] = wrong
            self.captures = tuple(one for one in self.captures if one is not found)
            self._calls = tuple(call for call in self._calls if call is not found.call)
            self._dispatch = Dispatch()  # a call that runs now may still note the old one
        stays = self.options.cache.delete(origin.key)
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

    # -- keeping ----------------------------------------------------------------------------------------

    def _recorded(
        self, lookup: Lookup, call: ReadCall, dims: Dimensions, args: Any, kwargs: Any
    ) -> tuple[CompiledStage, str]:
        made = self._new_capture(args, kwargs, self.options, dims=dims or None)
        if made.stage.sizes is not None:
            made.stage.sizes.num_checked = 0  # other calls run too, for which only the conditions of the entry hold
        self.captures = (*self.captures, made)
        made.stage.on_backward = self._later(ToKeep(made, lookup, call))
        return made.stage, made.contents

    def _to_keep(self, lookup: Lookup | None, made: Capture) -> tuple[Capture, ToKeep | None]:
        """A new capture with the key of what it has read, and what is to be kept of it when it has run."""
        if lookup is None or made.program_key is None or made.once or made.not_kept or made.takes_numbers:
            varies = "numbers vary in it" if made.takes_numbers else ""
            since = f"it changes {'; '.join(made.once)}" if made.once else made.not_kept or varies
            why = (f"it is not kept, since {since}",) if since and lookup is not None else ()
            origin = replace(made.origin, reasons=(*made.origin.reasons, *why))
            return replace(made, origin=origin), None
        call = lookup.captured(made.reads, digest_of_answers(made.questions) or _digest_of_sizes(made))
        doubt = in_doubt(replace(call.sources, unsure=call.sources.unsure[len(lookup.sources.unsure) :]))
        reasons = (*made.origin.reasons, *(doubt.reasons if doubt else ()))
        origin = replace(made.origin, key=call.key, reasons=tuple(dict.fromkeys(reasons)))
        told = replace(made, sources=call.sources, origin=origin)
        return told, ToKeep(told, lookup.once_made(), call)

    def _keep(self, one: ToKeep) -> None:
        """Leave a capture, which has run, to later processes."""
        from foregrad.runtime.fallback_warnings import slow_parts

        made, lookup, call = one.made, one.lookup, one.call
        if call.key in self._wrong:
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
            "does": [[change.name, change.what] for change in made.does],
            "fixed": made.fixed,
            "questions": questions_to_json(made.questions),
            "dims": _dims_to_json({} if made.conditions is None else made.conditions.dims),
            "conditions": [] if made.conditions is None else made.conditions.lines(),
        }
        assert made.program_key is not None
        why = self._why_not_kept() or keep_call(
            self.options.cache, call.sources, self._places(), [made.call, *made.stage.cut_runs], made.program_key, about
        )
        if why is None:
            lookup.keep(call)
        reasons = (*made.origin.reasons, *([why] if why else []))
        told = replace(made, origin=replace(made.origin, reasons=reasons))
        with self._lock:
            self.captures = tuple(told if one is made else one for one in self.captures)

    def _later(self, one: ToKeep) -> Callable[[], None]:
        """What keeps more of a capture. Its programs do not hold the compiled function, and may outlive it."""
        me, fresh = weakref.ref(self), self._without_captures()
        return lambda: (me() or fresh)._keep(one)

    def _without_captures(self) -> Self:
        """The same without its captures, for programs: recorded once more, they come out as they are."""
        made = object.__new__(type(self))
        vars(made).update(vars(self))
        made.captures, made._calls, made._dispatch, made._lock = (), (), Dispatch(), lock()
        vars(made).pop("_numbers", None)  # what is recorded again is one call, whose numbers are what they were
        return made

    def _why_not_kept(self) -> str | None:
        return None

    # -- what captures ----------------------------------------------------------------------------------

    def _state(self) -> tuple[Any, ...]:
        """The modules, optimizers and tensors whose contents the programs read and write."""
        return ()

    def _new_capture(
        self,
        args: Any,
        kwargs: Any,
        options: Options,
        origin: CaptureOrigin | None = None,
        dims: Dimensions | None = None,
    ) -> Capture:
        raise NotImplementedError

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        raise NotImplementedError

    def _options_of(self, captured: Captured) -> Options:
        """How a captured program is made to run."""
        return self.options


def _digest_of_sizes(made: Capture) -> str:
    """What tells a program in which sizes vary from others of the same function; empty if none do."""
    if made.conditions is None or made.program_key is None:
        return ""
    told = [*made.conditions.lines(), made.contents]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()


def _dims_to_json(dims: Dimensions) -> dict[str, Any]:
    return {name: [one.as_json() for one in found] for name, found in dims.items()}


def _dims_from_json(data: dict[str, Any]) -> Dimensions:
    if not data:
        return {}
    from foregrad.record.symbols.varying import Varying

    return {name: tuple(map(Varying.from_json, found)) for name, found in data.items()}


def _kept_conditions(said: tuple[str, ...], dims: Dimensions) -> KeptConditions | None:
    if not dims:
        return None
    from foregrad.api.dynamic import KeptConditions

    return KeptConditions(said, dims)


def _changes(kept: list[list[str]]) -> tuple[Change, ...]:
    """What the function did in Python when it was captured."""
    if not kept:
        return ()
    from foregrad.record.python.side_effects import Change

    return tuple(Change(name, what) for name, what in kept)
