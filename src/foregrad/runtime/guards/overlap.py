"""Overlap: whether the tensors of a call share memory as those of the capture did.

A program that writes to its inputs relies on it. Parameters and state stay where they are from call to call; what moves
is a batch or two, so only what has moved is looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from foregrad.core.shared_memory import address, overlapping_groups
from foregrad.core.spec import Spec

if TYPE_CHECKING:
    from foregrad.record.trace import TracedInput

_data_ptr = torch.Tensor.data_ptr


@dataclass(frozen=True)
class MemoryPlaces:
    """Where tensors were, and the memory of those that have never moved, in the order of its addresses."""

    where: tuple[Any, ...]
    moving: frozenset[int]
    settled: Callable[[Sequence[Any]], Any]  # the addresses of the others
    starts: list[int]
    ends: list[int]

    @staticmethod
    def of(where: tuple[Any, ...], moving: frozenset[int], sizes: Sequence[int]) -> MemoryPlaces:
        settled = [place for place in range(len(where)) if place not in moving]
        blocks = sorted((where[place], where[place] + sizes[place]) for place in settled if sizes[place])
        pick = itemgetter(*settled) if settled else lambda _: None
        return MemoryPlaces(where, moving, pick, [start for start, _ in blocks], [end for _, end in blocks])

    def is_free(self, block: tuple[int, int]) -> bool:
        """Whether nothing that stays lies there."""
        start, end = block
        after = bisect_right(self.starts, start)
        is_before_next = after == len(self.starts) or end <= self.starts[after]
        return is_before_next and (after == 0 or self.ends[after - 1] <= start)


class Overlap:
    """A function of tensors, which look like those that it is made for. Threads may call it at once: what it knows is
    replaced as a whole."""

    def __init__(self, pattern: list[list[int]], sizes: list[int], has_data: bool) -> None:
        self.pattern, self.sizes, self.has_data = pattern, sizes, has_data
        self._are_apart = all(len(group) == 1 for group in pattern)
        self._last: tuple[Any, ...] | None = None
        self._known: MemoryPlaces | None = None

    @staticmethod
    def of(tensors: Sequence[torch.Tensor]) -> Overlap:
        has_data = all(address(t)[0] == 0 for t in tensors)
        return Overlap(_pattern(tensors), [Spec.of(t).num_bytes for t in tensors], has_data)

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        where = tuple(map(_data_ptr if self.has_data else address, tensors))
        if where == self._last:
            return True
        known = self._known
        if known is None or not self._has_moved_apart(where, known):
            if _pattern(tensors) != self.pattern:
                return False
            if self.has_data and self._are_apart:
                self._known = self._places(where, known)
        self._last = where
        return True

    def _places(self, where: tuple[Any, ...], before: MemoryPlaces | None) -> MemoryPlaces:
        if before is None:
            return MemoryPlaces.of(where, frozenset(), self.sizes)
        moved = {place for place, (a, b) in enumerate(zip(where, before.where, strict=True)) if a != b}
        return MemoryPlaces.of(where, before.moving | moved, self.sizes)

    def _has_moved_apart(self, where: Sequence[Any], known: MemoryPlaces) -> bool:
        """Whether all that has moved is known to move, and is apart from everything else, as it was."""
        if known.settled(where) != known.settled(known.where):
            return False
        moved = [(where[place], where[place] + self.sizes[place]) for place in known.moving if self.sizes[place]]
        return all(map(known.is_free, moved)) and not any(a < d and c < b for (a, b), (c, d) in combinations(moved, 2))


@dataclass(frozen=True)
class SamePattern:
    """The same for tensors whose sizes vary: all are looked at in each call."""

    pattern: list[list[int]]

    @staticmethod
    def of(tensors: Sequence[torch.Tensor]) -> SamePattern:
        return SamePattern(_pattern(tensors))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        return _pattern(tensors) == self.pattern


def in_one_place(inputs: Sequence[tuple[TracedInput, str]]) -> Iterator[tuple[str, str]]:
    """Pairs of inputs, by their names, that show the same elements: a program may take one of them for both."""
    groups: dict[Any, list[str]] = {}
    for lifted, name in inputs:
        groups.setdefault((lifted.alias.storage, lifted.alias.geometry, lifted.alias.bits), []).append(name)
    for first, *others in groups.values():
        yield from ((first, other) for other in others)


def _pattern(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    place = {id(t): i for i, t in enumerate(tensors)}
    return [[place[id(t)] for t in group] for group in overlapping_groups(tensors)]
