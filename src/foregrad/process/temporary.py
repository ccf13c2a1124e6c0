"""Temporary changes of the process, for as many threads as like.

The first to come changes it and the last to go puts it back, whatever happens. No lock is held while other code runs,
so threads that wait for each other do not block each other here. A copy of the process has one thread: what the others
held is put back in it.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from foregrad.process.forks import in_child, is_mine, lock

_lock = lock(is_brief=True)  # for the moment of a change only
_numbers = itertools.count()
_all: weakref.WeakSet[TemporaryChange] = weakref.WeakSet()


class TemporaryChange:
    """A change of the process. `change` makes it and `put_back` undoes it; each may be called twice in a row."""

    #: What is otherwise, by name: `docs/process.md` has the reason for each.
    places: tuple[str, ...]

    def __init__(self) -> None:
        self._holders: dict[object, int] = {}  # the thread of each
        self._local = threading.local()
        self._number = next(_numbers)
        _all.add(self)

    def change(self) -> None:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError

    @property
    def is_held(self) -> bool:
        return bool(self._holders)

    @property
    def here(self) -> Any:
        """What this thread wants; None if it wants nothing."""
        wishes = getattr(self._local, "wishes", None)  # and no more than that: torch.compile of others looks through it
        return wishes[-1][1] if wishes else None

    @contextmanager
    def held(self, wanted: Any = None) -> Iterator[None]:
        """Inside, the change is made, and this thread wants something of it."""
        holder, is_inside = object(), is_mine(_lock)
        try:
            try:
                with _lock:
                    self._holders[holder] = threading.get_ident()
                    self._local.wishes = [*getattr(self._local, "wishes", ()), (holder, wanted)]
                    if len(self._holders) == 1:
                        self.change()
                yield
            finally:
                self._leave(holder)
        finally:
            try:
                self._leave(holder)  # once more: an interrupt may have come before the first time, or during it
            finally:
                if not is_inside:
                    _let_go()

    def _leave(self, holder: object) -> None:
        with _lock:
            self._local.wishes = [one for one in getattr(self._local, "wishes", ()) if one[0] is not holder]
            if holder in self._holders:
                if len(self._holders) == 1:
                    self.put_back()
                self._holders.pop(holder, None)

    def _only_of(self, thread: int) -> None:
        """Forget all threads but one."""
        if self._holders:
            self._holders = {holder: ident for holder, ident in self._holders.items() if ident == thread}
            if not self._holders:
                self.put_back()


class Attribute(TemporaryChange):
    """An attribute of a module or class that has another value."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        super().__init__()
        self.places = (name_in(owner, name),)
        self._place, self._value = (owner, name), value
        self._before: list[Any] | None = None  # empty where it is inherited

    def change(self) -> None:
        if self._before is None:
            owner, name = self._place
            self._before = [vars(owner)[name]] if name in vars(owner) else []
            setattr(owner, name, self._value)

    def put_back(self) -> None:
        if self._before:
            setattr(*self._place, self._before[0])
        elif self._before is not None:
            delattr(*self._place)
        self._before = None


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Inside, a module or class has another value for an attribute, for all threads: one at a time."""
    with Attribute(owner, name, value).held():
        yield


def name_in(owner: Any, name: str) -> str:
    """An attribute of a module or class, by its whole name."""
    home = owner.__name__ if isinstance(owner, ModuleType) else f"{owner.__module__}.{owner.__qualname__}"
    return f"{home}.{name}"


def _let_go() -> None:
    """Leave the lock to other threads: an interrupt between the end of a `with` and its exit has kept it."""
    while is_mine(_lock):
        _lock.release()


@in_child
def _in_a_copy() -> None:
    for one in sorted(_all, key=lambda held: -held._number):  # what was made last is put back first
        one._only_of(threading.get_ident())
