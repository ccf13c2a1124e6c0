"""Forks: what a child of `os.fork` finds of foregrad. It has one thread: what the others were doing stays undone in it.

Workers of a DataLoader and `multiprocessing` with "fork" are such children. Four rules hold for all of foregrad, and
`tests/house/test_forks.py` holds the source to them:

- every lock is made by `lock()`: one that another thread held at the fork is free in the child;
- what threads of a pool were to do is forgotten by a function that is registered with `in_child`;
- what is otherwise in the process for a while is a `TemporaryChange`, and is put back in the child;
- work that leaves something half done (a recording has tensors without data in the user's modules, an import has its
  lock) stands in `undivided()`: a fork in another thread waits until it is done, or pauses in `divided()`.

Threads of OpenMP, with which kernels compute, are ended by the thread that forks before it does: a child would wait for
them. They are made anew when they are needed, in both processes.

The wait has a limit, so that a thread which waits for the one that forks cannot hold it up for ever. A child of a fork
that did not wait long enough still gets its locks, pools and functions of Python back.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache

log = logging.getLogger("foregrad")

#: So long a fork waits for work of other threads, and such work for a fork that waits.
_FORK_SECONDS, _WORK_SECONDS = 30.0, 2.0

_locks: weakref.WeakSet[threading.RLock] = weakref.WeakSet()
_brief: list[threading.RLock] = []
_works: list[Callable[[], object]] = []


def lock(*, is_brief: bool = False) -> threading.RLock:
    """A lock that is free in a child, unless the thread that forks has it.

    A fork waits for one that is brief, so that what it guards is whole in the child; no other code may run under it."""
    made = threading.RLock()
    _locks.add(made)
    if is_brief:
        _brief.append(made)
    return made


def in_child(work: Callable[[], object]) -> Callable[[], object]:
    """Have this done in every child."""
    _works.append(work)
    return work


def is_mine(one: threading.RLock) -> bool:
    """Whether this thread has a lock."""
    return bool(one._is_owned())  # type: ignore[attr-defined]


class _Gate:
    """Which threads do something that is not to be divided by a fork, and forks that wait for them."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._depths: dict[int, int] = {}  # of blocks, by thread
        self._forking: set[int] = set()

    def depth(self, thread: int) -> int:
        return self._depths.get(thread, 0)

    def move(self, thread: int, depth: int) -> None:
        """Have a thread so deep in such blocks; one that begins lets a fork that waits go first, for a while."""
        with self._changed:
            if depth and not self.depth(thread) and self._forking - {thread}:
                self._changed.wait_for(lambda: not self._forking - {thread}, _WORK_SECONDS)
            if depth:
                self._depths[thread] = depth
            else:
                self._depths.pop(thread, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Wait until no other thread is inside; none gets in before `open`."""
        me = threading.get_ident()
        self._changed.acquire()
        self._forking.add(me)
        try:
            if not self._changed.wait_for(lambda: self._is_free(me), _FORK_SECONDS):
                log.warning(
                    "a process was forked while another thread captured or compiled, which took more than %.0f s: the "
                    "modules that it captures are unfinished in the child",
                    _FORK_SECONDS,
                )
        finally:
            self._forking.discard(me)

    def open(self) -> None:
        if self._changed._is_owned():  # type: ignore[attr-defined]
            self._changed.notify_all()
            self._changed.release()

    def in_child(self) -> None:
        me = threading.get_ident()
        self._depths = {me: depth} if (depth := self.depth(me)) else {}
        self._forking = set()
        self._changed = threading.Condition()

    def _is_free(self, me: int) -> bool:
        others = self._depths.keys() - self._forking - {me}
        return not others or not others & sys._current_frames().keys()  # threads that have ended count no more


_gate = _Gate()


@contextmanager
def undivided() -> Iterator[None]:
    """A fork in another thread waits for the end of the block."""
    yield from _at(lambda before: before + 1)


@contextmanager
def divided() -> Iterator[None]:
    """Inside such a block: a wait, during which a fork may happen."""
    yield from _at(lambda before: 0)


def _at(depth: Callable[[int], int]) -> Iterator[None]:
    me = threading.get_ident()
    before = _gate.depth(me)
    try:
        _gate.move(me, depth(before))
        yield
    finally:
        _gate.move(me, before)


def _before() -> None:
    _gate.close()
    pause = _pause_of_openmp()
    if pause is not None:
        pause(_PAUSE_SOFT)
    for one in _brief:
        one.acquire()


#: What OpenMP 5 calls it when threads are given back and nothing else is.
_PAUSE_SOFT = 1


@cache
def _pause_of_openmp() -> Callable[[int], int] | None:
    """What gives the threads of this thread's parallel loops back, in GNU's OpenMP; others know about forks."""
    everything = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(everything, "GOMP_parallel") or hasattr(everything, "__kmpc_fork_call"):
        return None
    return getattr(everything, "omp_pause_resource_all", None)


def _after() -> None:
    for one in filter(is_mine, _brief):
        one.release()
    _gate.open()


def _after_in_child() -> None:
    with ExitStack() as all_of_it:  # also if one fails
        for work in reversed(_works):
            all_of_it.callback(work)
        all_of_it.callback(_gate.in_child)
        for one in list(_locks):
            if is_mine(one):
                continue
            one._at_fork_reinit()  # type: ignore[attr-defined]
        for one in filter(is_mine, _brief):
            one.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
