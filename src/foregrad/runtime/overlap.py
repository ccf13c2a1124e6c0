"""Overlap: whether the tensors of a call share memory as those of the capture did.

A program that writes to its inputs relies on it. Parameters and state stay where they are from call to call; what moves
is a batch or two, so only what has moved is looked at.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import combinations
from operator import itemgetter
from typing import Any

import torch

from foregrad.record.inputs import address, overlapping_groups
from foregrad.words.spec import Spec

_data_ptr = torch.Tensor.data_ptr


class Overlap:
    """A function of tensors, which look like those that it is made for."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._captured = _pattern(tensors)
        self._are_apart = all(len(group) == 1 for group in self._captured)
        self._has_data = all(address(t)[0] == 0 for t in tensors)
        self._sizes = [Spec.of(t).num_bytes for t in tensors]
        self._moving: set[int] = set()
        self._last: Sequence[Any] | None = None
        self._settle(range(len(tensors)))

    def __call__(self, tensors: Sequence[torch.Tensor]) -> bool:
        where = tuple(map(_data_ptr if self._has_data else address, tensors))
        if where == self._last:
            return True
        if not self._has_moved_apart(where):
            if _pattern(tensors) != self._captured:
                return False
            before = where if self._last is None else self._last
            self._moving |= {place for place, (a, b) in enumerate(zip(where, before, strict=True)) if a != b}
            self._settle(where)
        self._last = where
        return True

    def _settle(self, where: Sequence[Any]) -> None:
        """Note where the tensors are that do not move, in the order of their addresses."""
        settled = [place for place in range(len(where)) if place not in self._moving]
        self._pick = itemgetter(*settled) if settled else lambda _: None
        self._settled = self._pick(where)
        blocks = sorted((where[place], self._sizes[place]) for place in settled if self._sizes[place])
        self._starts = [start for start, _ in blocks]
        self._ends = [start + size for start, size in blocks] if self._has_data else []

    def _has_moved_apart(self, where: Sequence[Any]) -> bool:
        """Whether all that has moved is known to move, and is apart from everything else, as it was."""
        if not (self._has_data and self._are_apart and self._moving) or self._pick(where) != self._settled:
            return False
        moved = [(where[place], where[place] + self._sizes[place]) for place in self._moving if self._sizes[place]]
        return all(map(self._is_free, moved)) and not any(a < d and c < b for (a, b), (c, d) in combinations(moved, 2))

    def _is_free(self, block: tuple[int, int]) -> bool:
        start, end = block
        after = bisect_right(self._starts, start)
        is_before_next = after == len(self._starts) or end <= self._starts[after]
        return is_before_next and (after == 0 or self._ends[after - 1] <= start)


def _pattern(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    place = {id(t): i for i, t in enumerate(tensors)}
    return [[place[id(t)] for t in group] for group in overlapping_groups(tensors)]
