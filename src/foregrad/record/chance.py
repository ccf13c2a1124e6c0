"""Chance: numbers from Python's or NumPy's generators, which a program would draw once, and then keep.

Both generators are those of all threads. So one that has moved is the function's doing only if code that ran names it.
"""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from foregrad.errors import CaptureError
from foregrad.record.executed import Executed, is_torchs


@contextmanager
def no_draws_of_python(executed: Executed) -> Iterator[None]:
    """Refuse a function that draws from these generators, and put them back as they were."""
    before = {name: get() for name, (get, _) in _generators().items()}
    yield
    for name, (get, put) in _generators().items():
        if name in before and not _same(before[name], get()):
            line = _line_that_names(name, executed)
            if line is not None:
                put(before[name])
                raise CaptureError(
                    f"the function draws numbers from {name}, and a program would use the same ones at each call.\n"
                    f"{line}\nDraw them outside and pass them as arguments, or draw with torch."
                )


def _generators() -> dict[str, tuple[Any, Any]]:
    """How to get the state of each generator, and how to put it back."""
    found: dict[str, tuple[Any, Any]] = {"Python's random": (random.getstate, random.setstate)}
    numpy = sys.modules.get("numpy.random")
    return {**found, "numpy.random": (numpy.get_state, numpy.set_state)} if numpy is not None else found


def _same(one: Any, other: Any) -> bool:
    """Whether two states are equal; NumPy's hold an array."""
    return repr([getattr(a, "tolist", lambda a=a: a)() for a in one]) == repr(
        [getattr(b, "tolist", lambda b=b: b)() for b in other]
    )


def _line_that_names(generator: str, executed: Executed) -> str | None:
    """The first line that names a generator, in code that ran; None if there is none."""
    homes = [random] if generator == "Python's random" else [sys.modules["numpy"], sys.modules["numpy.random"]]
    for code, variables in executed.ran():
        if code.co_name == "<module>" or is_torchs(code):
            continue
        line = _line_in(code, variables, homes)
        if line is not None:
            return f"  at {code.co_filename}:{line} in {code.co_name}"
    return None


def _line_in(code: CodeType, variables: dict[str, Any], homes: list[Any]) -> int | None:
    line = code.co_firstlineno
    for one in dis.get_instructions(code):
        line = one.starts_line or line
        value = variables.get(one.argval) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME") else None
        is_drawn = any(value is home or getattr(value, "__self__", None) is _source(home) for home in homes)
        if (value is not None and is_drawn) or (one.opname == "IMPORT_NAME" and one.argval in _NAMES):
            return int(line)
    return None


_NAMES = ("random", "numpy", "numpy.random")


def _source(home: Any) -> Any:
    """The object whose methods the functions of a module are."""
    return getattr(home, "_inst", None) or getattr(getattr(home, "mtrand", None), "_rand", home)
