"""Versions: where the steps of a call move the version counters of its inputs.

Autograd knows by its counter that a view is stale, and then makes its history anew. So it matters for a view whether
the writes to its memory are counted before it is made, or after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from foregrad.functionalize.effect_order import START, Placed, Position
from foregrad.functionalize.effects import Bump, RedoView, Step, is_bump, is_view
from foregrad.functionalize.version_counters import Counters
from foregrad.record.ops import Storage
from foregrad.record.trace import TracedBase, TracedInput


@dataclass(frozen=True)
class Versions:
    counters: Counters
    inputs: dict[int, TracedInput]
    bases: dict[int, TracedBase]
    writes: dict[Storage, list[tuple[int, int]]]  # op and object, in order

    def bumps(self, steps: Sequence[Step]) -> dict[int, int]:
        """How far the steps move each counter."""
        bumps: dict[int, int] = {}
        for step in steps:
            if is_bump(step):
                counter = self.counters.of(step.target)
                bumps[counter] = bumps.get(counter, 0) + 1
        return bumps

    def late_writes(self, steps: Sequence[Placed]) -> list[Placed]:
        """A view of an input, and a view that gets other memory, is older than a write that comes after it, to whatever
        memory: such a write is counted in its place, if no step counts one there."""
        late: list[Placed] = []
        bumps = [(place, self.counters.of(step.target)) for place, step in steps if is_bump(step)]
        for place, step in steps:
            counter = self.counters.of(step.target) if isinstance(step, RedoView) else None
            if counter not in self.inputs or any(at > place and of == counter for at, of in bumps):
                continue
            last = max(self._written(counter), default=START)
            if last > place:
                late.append((last, Bump(counter, (counter,))))
                bumps.append((last, counter))
        return late

    def first_writes(self, steps: Sequence[Placed]) -> list[Placed]:
        """Writes to an input that no step counts are counted before all steps, but after the views that were made
        earlier: these are views of the input as it comes, which may be a view that has a history."""
        bumps = self.bumps([step for _, step in steps])
        first: list[Placed] = []
        for number in [n for n in self.inputs if n in self.bases and self.counters.of(n) == n]:
            written = self._written(number)
            views = [at for at, step in steps if is_view(step) and self.counters.of(step.target) == number]
            if written and views and min(views) < min(written):
                missing = self.bases[number].version - self.inputs[number].version - bumps.get(number, 0)
                first += [(min(written), Bump(number, (number,)))] * missing
        return first

    def _written(self, counter: int) -> list[Position]:
        """The writes that a counter counts."""
        return [
            Position(i)
            for writes in self.writes.values()
            for i, target in writes
            if self.counters.of(target) == counter
        ]
