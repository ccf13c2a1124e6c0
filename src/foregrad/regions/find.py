"""Find: where a sequence of steps repeats, and where to cut it so that most is compiled once.

Labels propose and forms decide: runs of repeating labels are found for each likely period, the best first; for each run
the cut is chosen where few values cross, and only occurrences with exactly the same form count as repeats.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

from torch import fx

from foregrad.regions.steps import Form, Steps

# Costs, in what it costs to compile a node: about 13 ms with Inductor.
_CALL = 1  # about 15 us at each call of the program, over a thousand of these
_CROSSING = 1  # a value written by one region and read by the next, rather than kept in a loop
_BYTES = 1 << 14  # of such values, that cost as much as one value does
_REGION = 8  # whatever a distinct region costs besides its nodes

_SMALLEST_UNIT = 8  # nodes; a shorter unit is taken several at a time
_PERIODS = 48  # how many are tried
_CUTS = 4  # how many are tried for each run
_EFFORT = 24  # how often each step is looked at, on average, until what was found has to do


@dataclass(frozen=True)
class _Run:
    """Steps from `start` up to `stop` whose labels repeat with a period."""

    start: int
    stop: int
    period: int

    def clipped(self, start: int, stop: int) -> _Run:
        return _Run(max(self.start, start), min(self.stop, stop), self.period)


@dataclass(frozen=True)
class _Repeat:
    """Occurrences of repeating forms, each with its start and stop; `given` are views made before the first of them."""

    gain: float
    forms: tuple[tuple[int, int, Form], ...] = ()
    given: tuple[fx.Node, ...] = ()


def find_pieces(steps: Steps) -> list[Form]:
    """The forms of consecutive intervals that cover all steps: repeats, and the rest between them."""
    repeats = sorted(_Search(steps).repeats(), key=lambda repeat: repeat.forms[0][0])
    pieces: list[Form] = []
    end = 0
    for repeat in repeats:
        made = repeat.given
        for start, stop, form in repeat.forms:
            if end < start or made:
                pieces.append(steps.form(end, start, made=made))
            pieces.append(form)
            end, made = stop, ()
    if end < len(steps):
        pieces.append(steps.form(end, len(steps)))
    return pieces


class _Search:
    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        sizes = (sum(1 + sum(r in steps.views for r in steps.reads[n]) for n in step) for step in steps.steps)
        self.size = [0, *accumulate(sizes)]  # nodes before each step
        self.effort = _EFFORT * len(steps)

    def repeats(self) -> Iterator[_Repeat]:
        """Repeats that do not overlap, the one that saves most first."""
        queue = [(-self._hope(run), place, run) for place, run in enumerate(self._runs())]
        number = len(queue)
        heapq.heapify(queue)
        taken: list[tuple[int, int]] = []
        while queue and self.effort > 0:
            hope, _, run = heapq.heappop(queue)
            if hope >= 0:
                return
            overlap = next(((a, b) for a, b in taken if a < run.stop and run.start < b), None)
            if overlap is not None:
                for part in (run.clipped(0, overlap[0]), run.clipped(overlap[1], run.stop)):
                    number += 1
                    heapq.heappush(queue, (-self._hope(part), number, part))
                continue
            repeat = self._best_cut(run)
            if repeat.gain > 0:
                taken.append((repeat.forms[0][0], repeat.forms[-1][1]))
                yield repeat

    # -- runs -------------------------------------------------------------------------------------------

    def _runs(self) -> Iterator[_Run]:
        labels = self.steps.labels
        for period in self._periods():
            start: int | None = None
            for place in range(len(labels) - period + 1):
                matches = place + period < len(labels) and labels[place] == labels[place + period]
                if matches and start is None:
                    start = place
                elif not matches and start is not None:
                    if place - start >= period:
                        yield _Run(start, place + period, period)
                    start = None

    def _periods(self) -> list[int]:
        """Likely periods: distances from a label to its next few occurrences."""
        places: dict[int, list[int]] = defaultdict(list)
        distances: Counter[int] = Counter()
        for place, label in enumerate(self.steps.labels):
            found = places[label]
            distances.update(place - earlier for earlier in found[-4:])
            found.append(place)
        return [period for period, _ in distances.most_common(_PERIODS)]

    def _hope(self, run: _Run) -> float:
        """What a run saves at most, calls aside: of a stack the unit is one block, however deep it is."""
        unit = self._unit(run)
        num = (run.stop - run.start) // unit if unit else 0
        if num < 2:
            return 0
        size = self.size[run.start + unit] - self.size[run.start]
        return size * (num - 1) - 2 * _REGION

    def _unit(self, run: _Run) -> int:
        """Steps of a unit: one period, or as many as make it worth a call; 0 for a run that is too short."""
        if run.stop - run.start < run.period:
            return 0
        size = self.size[run.start + run.period] - self.size[run.start]
        return run.period * -(-_SMALLEST_UNIT // size)

    # -- cuts -------------------------------------------------------------------------------------------

    def _best_cut(self, run: _Run) -> _Repeat:
        """The run cut into units where it saves most; the first unit may start anywhere in the first period."""
        unit = self._unit(run)
        loss = self._losses(run, unit)

        def price(start: int) -> float:
            cuts = range(start, run.stop + 1, unit)
            rest = self.size[run.stop] - self.size[cuts[-1]] + self.size[start] - self.size[run.start]
            return rest + sum(loss[cut] for cut in cuts)

        starts = range(run.start, min(run.start + unit, run.stop - 2 * unit + 1))
        best = _Repeat(0)
        for start in heapq.nsmallest(_CUTS, starts, key=price):
            found = self._cut(run, start, unit)
            found = replace(found, gain=found.gain - sum(loss[begin] for begin, _, _ in found.forms))
            if found.gain > best.gain:
                best = found
            if len(found.forms) == len(range(start, run.stop - unit + 1, unit)):
                break  # all occurrences are alike, and cuts that come later cost more
        return best

    def _losses(self, run: _Run, unit: int) -> dict[int, float]:
        """What is lost by a cut before each step, rather than where least crosses in the unit that begins there.

        What crosses are the values that live for a unit or two: others are read from afar wherever the cuts are.
        """
        change = dict.fromkeys(range(run.start, run.stop + unit + 1), 0.0)
        for place in range(run.start, run.stop):
            for node in self.steps.steps[place]:
                last, spec = self.steps.last_read.get(node, -1), node.meta.get("spec")
                if place < last < min(place + 2 * unit, run.stop) and node not in self.steps.views:
                    cost = _CROSSING + (spec.plain().num_bytes / _BYTES if spec is not None else 0)
                    change[place + 1] += cost
                    change[last + 1] -= cost
        crossing = list(accumulate(change.values()))
        return {
            place: c - min(crossing[i : i + unit]) for i, (place, c) in enumerate(zip(change, crossing, strict=True))
        }

    def _cut(self, run: _Run, start: int, unit: int) -> _Repeat:
        """What is saved by cutting there, with all views made inside, or those that differ made before."""
        starts = range(start, run.stop - unit + 1, unit)
        found = self._matching(starts, unit, ())
        varying = self._varying_views(starts, unit) if len(found.forms) < len(starts) else ()
        if varying:
            found = max(found, self._matching(starts, unit, varying), key=lambda repeat: repeat.gain)
        return found

    def _matching(self, starts: range, unit: int, given: tuple[fx.Node, ...]) -> _Repeat:
        """The occurrences whose form is that of another one."""
        self.effort -= len(starts) * unit
        outside = frozenset(given)
        forms = [(s, s + unit, self.steps.form(s, s + unit, outside)) for s in starts]
        counts = Counter(form.key for _, _, form in forms)
        kept = tuple(f for f in forms if counts[f[2].key] > 1)
        distinct = {form.key: form for _, _, form in kept}.values()
        saved = sum(len(f.nodes) for _, _, f in kept) - sum(len(f.nodes) + _REGION for f in distinct)
        return _Repeat(saved - _CALL * len(kept) - _REGION, kept, given)

    def _varying_views(self, starts: range, unit: int) -> tuple[fx.Node, ...]:
        """Views of earlier values that differ from one occurrence to the next, such as the steps of `x.unbind()`."""
        found: dict[fx.Node, None] = {}
        for offset in range(unit):
            reads = [[r for n in self.steps.steps[s + offset] for r in self.steps.reads[n]] for s in starts]
            for aligned in zip(*reads, strict=True):
                views = [r for r in aligned if r in self.steps.views]
                recipes = {self._recipe(view) for view in views}
                if 2 * len(recipes) > len(starts) and all(self._is_before(v, starts[0]) for v in views):
                    found.update(dict.fromkeys(views))
        return tuple(found)

    def _recipe(self, view: fx.Node) -> tuple[int, ...]:
        recipe = []
        while view in self.steps.views:
            recipe.append(self.steps.words[view])
            view = self.steps.reads[view][0]
        return tuple(recipe)

    def _is_before(self, view: fx.Node, start: int) -> bool:
        return all(self.steps.born.get(root, -1) < start for root in self.steps.roots(view))
