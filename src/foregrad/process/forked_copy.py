"""Forked copy: work in a copy of this process, which nothing that it does can disturb.

A recording puts ghosts in place of the tensors of modules, and functions of its own in place of Python's: no thread of
the same process may run meanwhile. A copy of the process has all of them for itself.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from foregrad.process.forks import in_child

#: A copy has one thread: where another one held a lock of somebody else's, it waits for ever. It ends after so long.
_LIMIT_SECONDS = 120.0

#: How long the end of a process waits for its copies.
_LAST_SECONDS = 10.0

_running: dict[int, threading.Thread] = {}  # by the process of the copy
in_child(_running.clear)  # a child has no copies of its own yet


class Failed(Exception):
    """What was to be done in a copy was not; says why."""


def can_be_copied() -> bool:
    """Whether a copy of this process works: threads for devices do not come along."""
    return sys.platform == "linux" and not torch.accelerator.is_available()


def in_a_copy(work: Callable[[], Any], done: Callable[[Any], object]) -> threading.Thread:
    """Work in a copy of this process as it is now. A thread calls `done` with the result, plain data, or a `Failed`."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _work(work, writer)
    os.close(writer)
    thread = threading.Thread(target=_wait, args=(child, reader, done), daemon=True, name="foregrad check")
    _running[child] = thread
    thread.start()
    return thread


def _work(work: Callable[[], Any], writer: int) -> None:
    """All that the copy does. It says nothing on the screen, and leaves without what else its end would do."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _LIMIT_SECONDS)
        _end_with_reader(writer, True)
        os.nice(10)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        answer = {"result": work()}
    except BaseException as error:  # noqa: BLE001  whatever it is, the process that was copied says so
        answer = {"failed": f"{type(error).__name__}: {error}"}
    try:
        _end_with_reader(writer, False)
        with open(writer, "w") as file:
            json.dump(answer, file)
    finally:
        os._exit(0)


def _end_with_reader(writer: int, is_on: bool) -> None:
    """Whether the kernel kills this process when nobody is left to read what it writes. Not while it writes: that there
    is room again is told in the same way."""
    fcntl.fcntl(writer, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(writer, fcntl.F_SETSIG, signal.SIGKILL)
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_ASYNC if is_on else flags & ~os.O_ASYNC)


def _wait(child: int, reader: int, done: Callable[[Any], object]) -> None:
    try:
        data = _read(reader)
    finally:
        os.close(reader)
        _end(child)
    del _running[child]
    try:
        answer = json.loads(data)
    except ValueError:
        answer = {"failed": f"the copy of the process did not answer within {_LIMIT_SECONDS:.0f} s, or was ended"}
    done(Failed(answer["failed"]) if "failed" in answer else answer["result"])


def _read(reader: int) -> bytes:
    """All that is written, or what there is when the time is over."""
    ready, data, deadline = select.poll(), b"", time.monotonic() + _LIMIT_SECONDS
    ready.register(reader)
    while ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
        piece = os.read(reader, 1 << 16)
        if not piece:
            break
        data += piece
    return data


def _end(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)  # it has answered, or never will
        os.waitpid(child, 0)
    except (ProcessLookupError, ChildProcessError):  # the program itself waits for whatever child ends
        return


@atexit.register
def _finish() -> None:
    """Let copies answer before the process ends, or end them."""
    deadline = time.monotonic() + _LAST_SECONDS
    for child, thread in list(_running.items()):
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            _end(child)
