"""Random numbers of Python, NumPy and the system, which a program would draw once, and then keep.

The default generators are those of all threads. So one that has moved is the function's doing only if code that ran
names it.
"""

from __future__ import annotations

import dis
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from foregrad.core.errors import CaptureError
from foregrad.process.garbage_collection import is_young
from foregrad.record.python.executed_code import Executed, is_torchs
from foregrad.record.python.outside_objects import Outside
from foregrad.record.python.snapshots import put_back
from foregrad.record.python.world_reads import Anew, put_state


class Watched:
    """One run of code of the user's: what it reads from the world, and what it changes outside."""

    def __init__(self, executed: Executed) -> None:
        self.executed = executed
        self.anew, self.outside = Anew(), Outside()

    def begins(self, frame: FrameType) -> None:
        self.outside.begins(frame)

    def calls(self, frame: FrameType, function: Any) -> None:
        self.anew.calls(frame, function)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Refuse what is drawn, and put the generators back as they were; and what is read from open files."""
        before = {name: get() for name, (get, _) in _generators().items()}
        earlier, self.executed.watches = self.executed.watches, self
        try:
            with self.anew.watch():
                yield
        finally:
            self.executed.watches = earlier
        self._refuse_reads()
        self._refuse_draws()
        for name, (get, put) in _generators().items():
            if name in before and not _same(before[name], get()):
                line = _line_that_names(name, self.executed)
                if line is not None:
                    put(before[name])
                    _refuse(name, line)

    def _refuse_draws(self) -> None:
        """From generators that were there before, and from none but the system."""
        for asked in self.anew.drawn.values():
            if not is_young(asked.holder):
                put_state(asked.holder, asked.before)
                _refuse(asked.what, f"  at {asked.origin}")
        for asked in self.anew.entropy:
            _refuse(asked.what, f"  at {asked.origin}")
        for kept in self.outside.drawn():
            put_back(kept.value, kept.before)
            _refuse(f"`{kept.name}`, a {type(kept.value).__name__} of NumPy's", f"  at {kept.line}")

    def _refuse_reads(self) -> None:
        for asked in self.anew.unseen:
            raise CaptureError(
                f"the function reads a file through {asked.what}: a program would use the same data at each call.\n"
                f"  at {asked.origin}\nRead it outside and pass what it holds, or open it with open() inside."
            )
        for asked in self.anew.read.values():
            if not is_young(asked.holder):
                raise CaptureError(
                    f"the function reads from an open file, {asked.what}: a program would use the same data at each "
                    f"call.\n  at {asked.origin}\nRead it outside and pass what it holds, or open it inside."
                )


def _refuse(generator: str, line: str) -> None:
    raise CaptureError(
        f"the function draws numbers from {generator}, and a program would use the same ones at each call.\n"
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
