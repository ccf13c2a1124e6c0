"""Varying numbers: which numbers among the arguments are symbols in the next capture.

The first value of a number is a constant of the program. A second one makes it an input of the next, unless Python has
to know it there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from foregrad.record.lift.argument_objects import GivenArguments
from foregrad.record.lift.arguments import bind_arguments
from foregrad.record.python.container_arguments import Path

if TYPE_CHECKING:
    from foregrad.api.capture import Captured

#: More numbers than these that change are data, such as a list of points: each call is captured for its own.
_MOST = 64


class VaryingNumbers:
    """What one compiled function knows about the numbers among its arguments."""

    def __init__(self) -> None:
        self._first: dict[Path, tuple[type, str]] = {}
        self._varied: set[tuple[Path, type]] = set()
        self._fixed: dict[Path, str] = {}  # those that stay as they are, and why

    def plan(self, target: Any, args: Any, kwargs: Any) -> dict[Path, str]:
        """The places of the numbers that are symbols in a capture of this call, and what they are called."""
        found = list(GivenArguments.of(args, kwargs).places_of_numbers())
        for path, value in found:
            first = self._first.setdefault(path, (type(value), repr(value)))
            if first != (type(value), repr(value)):
                self._varied.add((path, type(value)))
                self._varied.update([(path, first[0])] if first[0] is not type(value) else [])
        names = list(bind_arguments(target, args, kwargs))
        wanted = [path for path, value in found if (path, type(value)) in self._varied and path not in self._fixed]
        return {path: _text(path, names) for path in wanted} if len(wanted) <= _MOST else {}

    def after(self, captured: Captured, wanted: Mapping[Path, str]) -> Captured:
        """A capture with what it has shown: numbers whose values it needs are constants from now on."""
        needed = {**captured.values_needed, **dict(captured.refused)}
        self._fixed.update({path: f"{wanted[path]} stays as it is: {why}" for path, why in needed.items()})
        places = [path for path, _ in captured.given.places_of_numbers()]
        return replace(captured, constants=tuple(self._fixed[path] for path in places if path in self._fixed))


class SameNumbers(VaryingNumbers):
    """Makes the numbers vary that did in another capture."""

    def __init__(self, numbers: Mapping[Path, str]) -> None:
        super().__init__()
        self._numbers = dict(numbers)

    def plan(self, target: Any, args: Any, kwargs: Any) -> dict[Path, str]:
        return self._numbers


def _text(path: Path, names: list[str]) -> str:
    """What a number is called: its parameter, and the way from there."""
    key = path[0].key
    first = names[key] if isinstance(key, int) and key < len(names) else key
    return f"{first}{''.join(map(str, path[1:]))}"
