"""Effects: what is left to do on real tensors after the pure program has run.

They are the recorded view and metadata ops that the results need, in program order and in the grad mode of their time,
and one copy into each input that was written. Replayed on the user's own tensors they give the same aliasing, flags,
histories and version counters as eager.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foregrad.record.ops import Alias, Geometry, Storage
from foregrad.record.trace import Ref, TracedBase, TracedInput


@dataclass(frozen=True, slots=True)
class RedoView:
    """Run a view or metadata op again; `Ref` arguments are objects. `item` picks one of several results."""

    target: int
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    grad_enabled: bool
    item: int | None
    is_in_place: bool
    is_silent: bool = False  # bumps no version counter
    stamp: tuple[int, int] | None = None  # an object, and the version at which a view of it is made


def refs(value: Any) -> Any:
    """An argument of a recorded op, with objects in place of what it looked at."""
    if isinstance(value, Alias):
        return Ref(value.object)
    if isinstance(value, list):
        return [refs(v) for v in value]
    return value


@dataclass(frozen=True, slots=True)
class Write:
    """Write a value of the program into an object; `how` is "grad", "leaf" (the same, to a leaf that needed a gradient
    on entry), "no_grad" or "data" (no version bump)."""

    target: int
    alias: Alias
    how: str
    is_part: bool = False  # of the object, some of whose elements are one place in memory: each of them once


@dataclass(frozen=True, slots=True)
class Bump:
    """Count a write to objects, in place of which the program has written their new values."""

    target: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Attach:
    """Give an object, which looks at an input's memory, the history of a value of the program."""

    target: int
    alias: Alias
    version: int | None  # where its version counter stands then, if it is its own


@dataclass(frozen=True, slots=True)
class Reshape:
    """Look at the memory of an object in another geometry."""

    target: int
    source: int
    geometry: Geometry
    how: str  # "view": an autograd view; "part": one of several that an op made; "data": a counter of its own
    stamp: tuple[int, int] | None = None  # as of `RedoView`
    grad_enabled: bool = True  # for those that autograd knows


@dataclass(frozen=True, slots=True)
class AsFunctionView:
    """Make an object the view that a custom Function made of it in eager."""

    target: int


@dataclass(frozen=True, slots=True)
class Hook:
    """Register a hook of the function's on an input."""

    target: int
    hook: Any


@dataclass(frozen=True, slots=True)
class GoOn:
    """Go on with a backward of the function's, from inputs that have a history, with values of the program."""

    target: int  # the first of these inputs
    inputs: tuple[int, ...]
    gradients: tuple[int, ...]
    retain_graph: bool
    create_graph: bool
    is_first: bool  # before any write to an input


@dataclass(frozen=True, slots=True)
class RequireGrad:
    target: int
    flag: bool


Step = RedoView | Write | Bump | Attach | Reshape | AsFunctionView | Hook | GoOn | RequireGrad


def is_bump(step: Step) -> bool:
    """Whether a step moves the version counter of what it is done to."""
    if isinstance(step, RedoView):
        return step.is_in_place and not step.is_silent
    return isinstance(step, Bump) or (isinstance(step, Write) and step.how != "data")


def is_view(step: Step) -> bool:
    """Whether a step makes a view of an object."""
    return (isinstance(step, RedoView) and not step.is_in_place) or isinstance(step, Reshape)


@dataclass(frozen=True)
class Effects:
    """Steps before the program runs, steps after it, and where the version counters must stand."""

    prologue: tuple[Step, ...] = ()
    steps: tuple[Step, ...] = ()
    inputs: dict[int, TracedInput] = field(default_factory=dict)  # objects that are inputs
    returned: dict[int, TracedBase] = field(default_factory=dict)  # objects that the program returns
    version_shifts: dict[int, int] = field(default_factory=dict)  # bumps to add to each object before the steps
    bumps: dict[int, int] = field(default_factory=dict)  # bumps that the steps make, by the object whose counter it is
    late_versions: dict[int, int] = field(default_factory=dict)  # versions to set after the steps
    early: tuple[int, ...] = ()  # objects with a counter of their own that steps before the program make
    counters: dict[int, int] = field(default_factory=dict)  # of inputs and bases: whose version counter each has


def siblings(effects: Effects) -> dict[int, int]:
    """Returned objects that look at the memory of another returned object, and which: the first that has the same
    version counter, else the first of all."""
    first: dict[Storage, int] = {}
    for number, base in effects.returned.items():
        if base.is_root:
            first[base.alias.storage] = number
    for number, base in effects.returned.items():
        first.setdefault(base.alias.storage, number)
    counted = {(storage, effects.counters[number]): number for storage, number in first.items()}
    found: dict[int, int] = {}
    for number, base in effects.returned.items():
        storage = base.alias.storage
        if first[storage] != number:
            place = (storage, effects.counters[number])
            found[number] = counted.get(place, first[storage])
            counted.setdefault(place, number)
    return found
