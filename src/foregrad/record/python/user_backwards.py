"""Backwards: what code of the user's does while a backward is recorded: hooks, and custom Functions.

It may draw nothing and leave nothing outside: a program could not do that at each backward. Such a backward is refused
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foregrad.core.errors import CaptureError
from foregrad.record.python.executed_code import Executed
from foregrad.record.python.outside_objects import Snapshot
from foregrad.record.python.random_numbers import Watched
from foregrad.record.python.snapshots import put_back
from foregrad.record.user_objects import Held


class Backwards:
    """Looks at every backward of a recording. `hooked` are objects of C functions that are hooks."""

    def __init__(self, executed: Executed, hooked: list[tuple[str, Any, Any]], objects: Held) -> None:
        self._executed = executed
        self._hooked = hooked
        self._outside: list[Any] = []  # objects that a backward has changed, and that were there before the function
        self._objects = objects

    @contextmanager
    def watch(self) -> Iterator[Watched]:
        """Everything is put back: each backward begins with what the function has left."""
        watched = Watched(self._executed)
        for name, holder, code in self._hooked:
            watched.outside.look_at(name, holder, code)
        try:
            with watched.watch():
                yield watched
            changed = [kept for kept in watched.outside.different() if self._is_outside(kept)]
            if changed:
                self._outside += [kept.value for kept in changed]
                said = "\n".join(str(change) for kept in changed for change in kept.in_words())
                raise CaptureError(
                    f"a backward changes `{changed[0].name}` outside the function; a program cannot do that at each "
                    f"backward.\n{said}\nHooks on inputs and parameters, registered outside, run at each backward."
                )
        finally:
            for kept in watched.outside.different():
                put_back(kept.value, kept.before)

    def _is_outside(self, kept: Snapshot) -> bool:
        is_aged = self._objects.is_capturing  # only then the age of objects is known
        given = self._objects.now.arguments
        if given is not None and id(kept.value) in given.copied:
            return True
        return kept.was_there if is_aged else any(one is kept.value for one in self._outside)
