"""Heap: memory that malloc keeps when a step has freed it, and memory of dropped programs that it hands back.

At the end of a step all of its values are free, and glibc hands what is free at the end of its heap back to the system.
The next step then gets it page by page, each one cleared and mapped anew.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Any

#: What glibc's `mallopt` calls them: free bytes at the end of the heap from which on they go back to the system, and
#: bytes from which on memory is not taken from the heap at all.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
#: The most that glibc takes for each.
MOST_KEPT, _LARGEST = (1 << 31) - 1, 32 << 20


def keep_freed_memory(num_bytes: int) -> None:
    """Have malloc keep up to so much free memory at the end of its heap. Pieces above 32 MiB are handed back as ever.

    glibc then adapts its thresholds no more, and has no way to let it do so again.
    """
    mallopt = _of_malloc("mallopt")
    if mallopt is None or not (mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, num_bytes)):
        raise OSError("keep_freed_memory needs malloc of glibc, which this process does not use: leave it out")


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
