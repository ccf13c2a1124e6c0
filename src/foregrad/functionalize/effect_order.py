"""Position: where an effect stands in the order of the recorded ops."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from foregrad.functionalize.effects import Step


class Turn(IntEnum):
    """Which of the effects at one op comes first."""

    BACKWARD = 0  # the rest of a backward that ended just before the op
    OP = 1  # the op itself, or the count of its write
    HISTORY = 2  # the history that it gave to a tensor
    FLAG = 3  # requires_grad, set after it
    WRITE = 4  # the copy into an input


class Position(NamedTuple):
    """An op, and a turn there; positions compare in the order in which effects are applied."""

    op: int
    turn: Turn = Turn.OP


#: Before all ops.
START = Position(-1)

#: A step, and when it is done.
Placed = tuple[Position, Step]
