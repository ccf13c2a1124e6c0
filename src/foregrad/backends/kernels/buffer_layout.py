"""Buffer layout: buffers that live for some steps each, in one allocation of the least size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

_ALIGNMENT = 64


class Buffer(Protocol):
    """A value: its size, and the steps that use it, in order."""

    num_bytes: int
    uses: list[int]


P = TypeVar("P", bound=Buffer)


def arranged(pieces: Sequence[P]) -> tuple[dict[P, int], int]:
    """Where each lies beside those that are used in the same time, the largest first, and how long that is."""
    places: dict[P, int] = {}
    for piece in sorted(pieces, key=lambda p: (-p.num_bytes, p.uses[0])):
        others = [o for o in places if o.uses[0] <= piece.uses[-1] and piece.uses[0] <= o.uses[-1]]
        start = 0
        for other in sorted(others, key=places.__getitem__):
            if places[other] >= start + piece.num_bytes:
                break
            start = max(start, _aligned(places[other] + other.num_bytes))
        places[piece] = start
    return places, max((start + piece.num_bytes for piece, start in places.items()), default=0)


def arranged_in_order(pieces: Sequence[P]) -> tuple[dict[P, int], int]:
    """The same in the time that it takes to look at each: the place of a value is free for another of its size."""
    places: dict[P, int] = {}
    free: dict[int, list[int]] = {}
    ends = sorted(pieces, key=lambda p: p.uses[-1])
    length = done = 0
    for piece in sorted(pieces, key=lambda p: p.uses[0]):
        while ends[done].uses[-1] < piece.uses[0]:
            free.setdefault(ends[done].num_bytes, []).append(places[ends[done]])
            done += 1
        if not free.get(piece.num_bytes):
            free[piece.num_bytes], length = [length], length + _aligned(piece.num_bytes)
        places[piece] = free[piece.num_bytes].pop()
    return places, length


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT) * _ALIGNMENT
