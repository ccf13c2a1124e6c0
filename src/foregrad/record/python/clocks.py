"""Clocks: what a clock says, as a number that can be told from others while a function is recorded.

Time that is measured and logged is no part of a program.
A moment that reaches an op or a result would be: that is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foregrad.core.errors import CaptureError
from foregrad.record.session import CLOCKS


class Moment(float):
    """Seconds that a clock says, and what sums and products make of them."""


def _arithmetic(name: str) -> Callable[[Any, Any], Any]:
    plain = getattr(float, name)

    def method(self: Any, *others: Any) -> Any:
        found = plain(self, *others)
        return Moment(found) if type(found) is float else found

    return method


_BINARY = ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv", "mod", "rmod")
for _name in (*_BINARY, "pow", "neg", "pos", "abs", "round"):
    setattr(Moment, f"__{_name}__", _arithmetic(f"__{_name}__"))


def _moment(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    found = original(*args, **kwargs)
    return Moment(found) if type(found) is float else found


@contextmanager
def clocks_give_moments() -> Iterator[None]:
    """Clocks of the module `time`, for code that asks for them there."""
    with CLOCKS.by(_moment):
        yield


def refuse_moment(value: Any, name: str, definition: str) -> None:
    if isinstance(value, Moment):
        raise CaptureError(
            f"the function returns what a clock says as {name}: a program would return the same at each call.\n"
            f"{definition}\nMeasure the time outside."
        )


#: What reads a clock, by the name of it.
CLOCK_NAMES = tuple(
    name
    for name in (
        *("time", "perf_counter", "monotonic", "process_time", "thread_time", "clock_gettime"),
        *("time_ns", "perf_counter_ns", "monotonic_ns", "process_time_ns", "thread_time_ns", "clock_gettime_ns"),
        *("localtime", "gmtime", "ctime", "strftime"),
    )
    if hasattr(time, name)
)
