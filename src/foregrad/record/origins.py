"""Origins: the user's line and the module that each op comes from, in forward and in backward."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from foregrad.record.frames import calling_frame, is_users, user_frame
from foregrad.record.ops import Origin
from foregrad.torch_private.autograd import BackwardCFunction, current_autograd_node, next_sequence_number

_NOWHERE = Origin(None, 0, "")


class Origins:
    """Backward ops have the origin of the forward op whose autograd node is running.

    `on_function` is told of each custom Function whose backward starts to run.
    """

    def __init__(self, on_function: Callable[[Any], None]) -> None:
        self._by_number: dict[int, Origin] = {}
        self._node: tuple[Any, Origin] = (None, _NOWHERE)
        self._on_function = on_function

    def now(self, phase: int, module: str) -> Origin:
        node = current_autograd_node() if phase else None
        if node is not None:
            if node is not self._node[0]:
                self._node = (node, self._of(node._sequence_nr()))
                if isinstance(node, BackwardCFunction):
                    self._on_function(node)
            return self._node[1]
        origin = Origin(*user_frame(3), module)
        self._by_number.setdefault(next_sequence_number() - 1, origin)
        return origin

    def _of(self, number: int) -> Origin:
        """Where a node with this number comes from. A write to a view makes up to two more than the op that writes."""
        numbers = (number, number - 1, number - 2)
        return next((self._by_number[n] for n in numbers if n in self._by_number), _NOWHERE)


def definition(function: Any) -> str:
    """The line where a function is defined, as a line of an error; if it is not the user's, the line that calls it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    code, instruction = (code, 0) if code is not None and is_users(code) else user_frame(2)
    return f"  at {Origin(code, instruction, '')}"


def where(module: str) -> str:
    """The user's line that is running, as a line of an error."""
    origin, caller = Origin(*user_frame(2), module), calling_frame(2)
    line = f"  at {origin}" + (f", module {module}" if module else "")
    return line if caller[0] is None else f"{line}\n  called at {Origin(*caller, module)}"
