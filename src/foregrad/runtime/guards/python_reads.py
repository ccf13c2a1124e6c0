"""Python reads: what a captured function read in Python, where its tensors are kept, and the guard of both."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.history import attributes_of
from foregrad.record.lift.argument_objects import given_objects_in
from foregrad.record.lift.locate import Location, Variable, locate, with_places
from foregrad.record.recording import Recording
from foregrad.runtime.guards.comparable import can_compare, containers_in, objects_in
from foregrad.runtime.guards.python_guard import PythonGuard
from foregrad.runtime.guards.python_objects import is_closed
from foregrad.runtime.guards.reach import Lost, PythonReads, Reached
from foregrad.runtime.guards.walk import KnownTensors


@dataclass(frozen=True, eq=False)
class ObservedReads:
    """What was read in Python: its guard, and how to make that again, here or in another process."""

    guard: PythonGuard
    places: dict[int, Location]  # of tensors, by id
    met: frozenset[int]  # ids of objects among the arguments, and of lists and dicts in the result, that it met
    again: PythonReads
    now: Callable[[], Reached]  # looks once more


def observe_reads(
    recording: Recording,
    target: Any,
    body: Any,
    state: tuple[Any, ...],
    variables: tuple[Variable, ...],
    arguments: dict[str, Any],
) -> ObservedReads:
    """Look at everything that a recorded function can have read. `variables` are those that guards read anew."""
    inputs = [*(one.real for one in recording.inputs.all), *(one.real for one in recording.inputs.outer)]
    places = locate(inputs, recording.modules.tops, body)
    elsewhere = frozenset(id(one) for v in variables if can_compare(v.value) for one in containers_in(v.value))
    tensors = KnownTensors(frozenset(map(id, inputs)), places, elsewhere)
    again = _reads(recording, target, state)
    now = functools.partial(_reached, recording, again, tensors, arguments)
    found = now()
    again = replace(again, reads=replace(again.reads, names=found.names))
    return ObservedReads(found.guard, with_places(places, found.places), found.met, again, now)


def _reads(recording: Recording, target: Any, state: tuple[Any, ...]) -> PythonReads:
    executed, reads = recording.recorder.executed, recording.recorder.executed.reads()
    found = {name for name, _ in reads.globals}
    modules = [str(scope.variables.get("__name__")) for scope in executed.scopes()]
    lost = tuple(name for name in modules if name not in found and not is_closed(name))
    lost += tuple(f"the file {path}" for path in recording.files)
    lost += tuple(f"{name} of an input" for name, _ in recording.grads.hooks.named)
    called = tuple(recording.modules.called.values())
    return PythonReads(target, state, called, reads, Lost(lost) if lost else None)


def _reached(recording: Recording, again: PythonReads, tensors: KnownTensors, arguments: dict[str, Any]) -> Reached:
    tensors_given = [(name, one) for name, one in arguments.items() if isinstance(one, torch.Tensor)]
    attached = [(f"{name}.{key}", value) for name, one in tensors_given for key, value in attributes_of(one).items()]
    more = [*objects_in(arguments), *attached, *recording.files.items(), *recording.grads.hooks.named]
    objects = list(given_objects_in(arguments))
    more += {id(one.kind): (one.kind.__qualname__, one.kind) for one in objects}.values()
    walk = again.reach(recording.recorder.executed.scopes(), tensors, more)
    watched = walk.pin(recording.objects.now.kept)
    return replace(Reached.of(walk), met=watched | walk.met(frozenset(id(one.real) for one in objects)))
