"""Draws: which random ops of a checkpointed region repeat the numbers of its first run."""

from __future__ import annotations

from typing import Any

from foregrad.substrate import checkpoint_region


class Draws:
    """Every random op met so far, by the checkpointed region that it is in."""

    def __init__(self) -> None:
        self._drawn: dict[int, tuple[Any, list[int]]] = {}  # region, and the ops of its first run
        self._redrawn: dict[tuple[int, int], int] = {}  # how many ops a recomputation has repeated
        self._recomputing: list[Any] = []  # frames, alive so that their ids stay their own

    def repeats(self, index: int) -> int | None:
        """The op whose numbers op `index` repeats, if a checkpoint is recomputing it."""
        region, recomputing = checkpoint_region()
        if region is None:
            return None
        drawn = self._drawn.setdefault(id(region), (region, []))[1]
        if recomputing is None:
            drawn.append(index)
            return None
        run = (id(region), id(recomputing))
        place = self._redrawn.get(run, 0)
        self._redrawn[run] = place + 1
        self._recomputing.append(recomputing)
        return drawn[place] if place < len(drawn) else None
