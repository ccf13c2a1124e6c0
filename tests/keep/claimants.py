"""Processes that want one entry. Tests fork them: a new process would import torch for seconds."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable


def fork(work: Callable[[], None]) -> int:
    """A process that does some work; its exit code is 0 if nothing is raised."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def code_of(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def until(what: Callable[[], object], seconds: float = 20.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() >= end:
            raise TimeoutError("it did not happen")
        time.sleep(0.005)
