"""Progress: what long work is doing, and how long each part of it took.

    with watched(timings, "train"):
        with part("record"): ...
        with part("compile forward"): ...

Whoever works says `part(...)`; whoever started it gets the times, and a person at a terminal sees a line that moves.
Elsewhere each part is a log line of the logger `foregrad`. `FOREGRAD_PROGRESS=off` shows nothing.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from foregrad.process.environment import PROGRESS

log = logging.getLogger("foregrad")

#: Work that is done sooner is not worth a line on the screen.
_PATIENCE_SECONDS = 1.0


@dataclass(frozen=True)
class TimedPart:
    """A named part of some work, and its time; `depth` is how many parts it stands inside of."""

    name: str
    seconds: float
    depth: int = 0


@dataclass
class Timings:
    """The parts of some work in the order in which they began; prints as a table."""

    parts: list[TimedPart] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.parts if p.depth == 0)

    def __getitem__(self, name: str) -> float:
        """Seconds of all parts of this name."""
        found = [p.seconds for p in self.parts if p.name == name]
        if not found:
            raise KeyError(name)
        return sum(found)

    def __str__(self) -> str:
        width = max((len(p.name) + 2 * p.depth for p in self.parts), default=0)
        lines = [f"{'  ' * p.depth + p.name:{width}}  {p.seconds:8.3f} s" for p in self.parts]
        return "\n".join([*lines, f"{'total':{width}}  {self.seconds:8.3f} s"])


class _Watch:
    def __init__(self, timings: Timings, title: str, show: bool) -> None:
        self.timings = timings
        self.depth = 0
        self.title = title
        self.is_shown = show and not PROGRESS.is_off
        self.began = time.perf_counter()
        self.status: Any = None

    def enter(self, name: str) -> int:
        place = len(self.timings.parts)
        self.timings.parts.append(TimedPart(name, 0.0, self.depth))
        self.depth += 1
        self._show(name)
        return place

    def leave(self, place: int, seconds: float) -> None:
        self.depth -= 1
        part = TimedPart(self.timings.parts[place].name, seconds, self.depth)
        self.timings.parts[place] = part
        if self.is_shown and self.status is None:
            log.info("%s: %s%s took %.2f s", self.title, "  " * part.depth, part.name, seconds)

    def _show(self, name: str) -> None:
        if not self.is_shown or not sys.stderr.isatty():
            return
        if self.status is None and time.perf_counter() - self.began > _PATIENCE_SECONDS:
            from rich.console import Console
            from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self.status = Progress(*columns, console=Console(stderr=True), transient=True)
            self.status.add_task(self.title)
            self.status.start()
        if self.status is not None:
            self.status.update(self.status.task_ids[0], description=f"foregrad {self.title}: {name}")

    def close(self) -> None:
        if self.status is not None:
            self.status.stop()


_watch: ContextVar[_Watch | None] = ContextVar("foregrad_progress", default=None)


@contextmanager
def watched(timings: Timings, title: str, *, show: bool = True) -> Iterator[None]:
    """Collect the parts of what happens in the block, and show them."""
    watch = _Watch(timings, title, show)
    token = _watch.set(watch)
    try:
        yield
    finally:
        _watch.reset(token)
        watch.close()


@contextmanager
def part(name: str) -> Iterator[None]:
    """A part of the work that is being watched, if any is."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    place, began = watch.enter(name), time.perf_counter()
    try:
        yield
    finally:
        watch.leave(place, time.perf_counter() - began)
