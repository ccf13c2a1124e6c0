"""Heap: memory that a step has freed stays with the process, for the next step; that of dropped programs goes back.

At the end of a step all of its values are free, and glibc hands what is free at the end of its heap back to the system.
The next step then gets it page by page, each one cleared and mapped anew, which takes up to a tenth of its time.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from functools import cache
from typing import Any

from foregrad.process.environment import KEEP_MEMORY, MALLOC

#: What glibc's `mallopt` calls them: free bytes at the end of the heap from which on they go back to the system, and
#: bytes from which on memory is not taken from the heap at all.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The most that is kept, and the most that glibc allows there.
_MOST_KEPT, _LARGEST = 1 << 30, 32 << 20


@cache
def keep_freed_memory() -> None:
    """From now on, up to 1 GiB of it; once for a process. Not if the user has said how memory is kept."""
    if KEEP_MEMORY.is_off or any(one.value for one in MALLOC):
        return
    mallopt = _of_malloc("mallopt")
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, _MOST_KEPT)


def return_memory_of_dropped() -> None:
    """After the next full garbage collection, hand free memory back to the system, wherever it lies in the heap.

    A program that was dropped leaves a recording behind that refers to itself, in small pieces between large ones.
    """
    global _is_due
    _is_due = True
    if _trim not in gc.callbacks:
        gc.callbacks.append(_trim)


_is_due = False  # whether something was dropped since memory was last returned


def _trim(phase: str, info: dict[str, Any]) -> None:
    global _is_due
    if phase == "stop" and info["generation"] == 2:
        if gc.callbacks[-1] is _trim:  # else the one behind it would not be called: Python counts places
            gc.callbacks.pop()
        malloc_trim = _of_malloc("malloc_trim") if _is_due else None
        _is_due = False
        if malloc_trim is not None:
            malloc_trim(0)


def _of_malloc(name: str) -> Any:
    """A function of glibc's; other libraries for C have their own ways, and None here."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None
