"""Held: something of the process that is otherwise for a while, for as many threads as like.

The first to come changes it and the last to go puts it back, whatever happens. No lock is held while other code runs,
so threads that wait for each other do not block each other here. A copy of the process has one thread: what the others
held is put back in it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_lock = threading.RLock()  # for the moment of a change only
_all: weakref.WeakSet[Held] = weakref.WeakSet()


class Held:
    """A change of the process. `change` makes it and `put_back` undoes it; each may be called twice in a row."""

    def __init__(self) -> None:
        self._holders: dict[object, int] = {}  # the thread of each
        _all.add(self)

    def change(self) -> None:
        raise NotImplementedError

    def put_back(self) -> None:
        raise NotImplementedError

    @property
    def is_held(self) -> bool:
        return bool(self._holders)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside, the change is made."""
        holder = object()
        try:
            with _lock:
                self._holders[holder] = threading.get_ident()
                if len(self._holders) == 1:
                    self.change()
            yield
        finally:
            _to_the_end(lambda: self._leave(holder))

    def _leave(self, holder: object) -> None:
        with _lock:
            self._holders.pop(holder, None)
            if not self._holders:
                self.put_back()

    def _only_of(self, thread: int) -> None:
        """Forget all threads but one."""
        if self._holders:
            self._holders = {holder: ident for holder, ident in self._holders.items() if ident == thread}
            if not self._holders:
                self.put_back()


def _to_the_end(work: Callable[[], Any]) -> None:
    """Do what may be done twice; an interrupt that comes meanwhile is raised afterwards."""
    late: KeyboardInterrupt | None = None
    while True:
        try:
            work()
            break
        except KeyboardInterrupt as error:
            late = error
    if late is not None:
        raise late


def _in_a_copy() -> None:
    _lock.release()
    for one in list(_all):
        one._only_of(threading.get_ident())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_a_copy)
