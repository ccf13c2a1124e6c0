"""Session: everything of the process that acts otherwise while a function is recorded, and how that is undone.

Python's own functions take numbers that are symbols, a print is noted, checkpoints can be computed twice. A replacement
acts in the thread that records and in no other: there the original is called, now and later, whoever still has the
replacement in hand. The last recording to end puts the originals back.
"""

from __future__ import annotations

import builtins
import functools
import gc
import io
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.process.temporary import TemporaryChange, name_in
from foregrad.torch_private.autograd import CHECKPOINT_OF_SAVED
from foregrad.torch_private.autograd_engine import FUNCTION_CALLS
from foregrad.torch_private.modules import MODULE_CALL
from foregrad.torch_private.native_code import (
    COMPILED_FRAMES,
    DYNAMO_FRAMES,
    dynamo_frames,
    need_compiled_frames,
    need_no_compiled_frames,
)
from foregrad.torch_private.training import SCALED_STEP

#: What a replacement does: given the original, and the arguments of the call.
Act = Callable[..., Any]

_ABSENT: Any = object()


class Replacement(TemporaryChange):
    """Functions of a module or class that act otherwise in threads that wish so."""

    def __init__(self, owner: Any, *names: str) -> None:
        super().__init__()
        self.owner = owner
        self.names = names
        self.places = tuple(name_in(owner, name) for name in names)
        self._stand_ins: dict[str, tuple[Any, Any]] = {}  # by name, each with the entry that it replaces

    @contextmanager
    def by(self, act: Act) -> Iterator[None]:
        """In this thread `act` is called, with the original as its first argument."""
        with self.held(act):
            yield

    def change(self) -> None:
        for name in self.names:
            entry = vars(self.owner).get(name, _ABSENT)
            while getattr(entry, "stands_in", False):  # left by someone who put back what he had found
                entry = entry.__wrapped__
            original = getattr(self.owner, name) if entry is _ABSENT else entry
            self._stand_ins[name] = (self._stand_in(original), entry)
            setattr(self.owner, name, self._stand_ins[name][0])

    def put_back(self) -> None:
        for name, (stand_in, entry) in self._stand_ins.items():
            if vars(self.owner).get(name) is stand_in:
                if entry is _ABSENT:
                    delattr(self.owner, name)
                else:
                    setattr(self.owner, name, entry)
        while self._stand_ins:
            _, (stand_in, _) = self._stand_ins.popitem()
            _let_go(stand_in)

    def _stand_in(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            act = self.here
            return original(*args, **kwargs) if act is None else act(original, *args, **kwargs)

        call.stands_in = True  # type: ignore[attr-defined]
        return call


#: Of a function in a local variable: by that variable, and as an argument of the call that asks.
_OWN_REFERENCES = 3


def _let_go(stand_in: Any) -> None:
    """Put the original where someone has taken hold of a stand-in: a module that was imported meanwhile."""
    if sys.getrefcount(stand_in) > _OWN_REFERENCES:
        for holder in gc.get_referrers(stand_in):
            if type(holder) is dict and isinstance(holder.get("__name__"), str):
                holder.update({k: stand_in.__wrapped__ for k, v in list(holder.items()) if v is stand_in})


class _Generator:
    """The default generator as the functions of `torch.random` see it: that of the recording in threads that record."""

    def __getattr__(self, name: str) -> Any:
        return getattr(GENERATOR.here or torch.default_generator, name)


class DefaultGenerator(TemporaryChange):
    """What `torch.get_rng_state`, `torch.manual_seed` and their like work on."""

    places = ("torch.random.default_generator",)

    def change(self) -> None:
        torch.random.default_generator = _Generator()  # type: ignore[attr-defined, assignment]

    def put_back(self) -> None:
        torch.random.default_generator = torch.default_generator  # type: ignore[attr-defined]

    @contextmanager
    def of_this_thread(self) -> Iterator[torch.Generator]:
        """A generator in the state of the default one. If there are other threads it is one of its own: they draw
        meanwhile, and see nothing. What Python does to `torch.default_generator` itself is then not noticed."""
        if len(sys._current_frames()) == 1:
            yield torch.default_generator
            return
        own = (self.here or torch.default_generator).clone_state()
        with self.held(own):
            yield own


class NoAnomalies(TemporaryChange):
    """Anomaly mode is one for all threads; its engine looks for NaN in every gradient, which ghosts have not."""

    places = ("torch.is_anomaly_enabled()",)
    before: tuple[bool, bool] | None = None

    def change(self) -> None:
        if torch.is_anomaly_enabled():
            self.before = (True, torch.is_anomaly_check_nan_enabled())
            torch.set_anomaly_enabled(False, True)

    def put_back(self) -> None:
        if self.before is not None and not torch.is_anomaly_enabled():
            torch.set_anomaly_enabled(*self.before)
        self.before = None


class NoCompiledFrames(TemporaryChange):
    """`torch.compile(..., fullgraph=True)` does not mind that nothing is compiled, as inside another such function."""

    places = (COMPILED_FRAMES,)
    was_needed = False

    def change(self) -> None:
        self.was_needed = need_no_compiled_frames() or self.was_needed

    def put_back(self) -> None:
        if self.was_needed:
            need_compiled_frames()
        self.was_needed = False


class NoTorchCompile(Replacement):
    """Functions under torch.compile run as they are: Dynamo would compile what records them."""

    def __init__(self) -> None:
        super().__init__(None)
        self.places = (DYNAMO_FRAMES,)

    def change(self) -> None:
        found = dynamo_frames()
        if found is not None:
            self.owner, self.names = found[0], (found[1],)
            super().change()

    @contextmanager
    def in_this_thread(self) -> Iterator[None]:
        with NO_COMPILED_FRAMES.held(), self.by(lambda original, *args: None):  # no callback: frames run as Python's do
            yield


PRINT = Replacement(builtins, "print")
LOG = Replacement(logging.Logger, "handle")
MAX, MIN = Replacement(builtins, "max"), Replacement(builtins, "min")
MATH = Replacement(math, *(name for name, f in vars(math).items() if callable(f) and not name.startswith("_")))
OPEN, IO_OPEN = Replacement(builtins, "open"), Replacement(io, "open")
CLOCKS = Replacement(time, "time", "perf_counter", "monotonic", "process_time")
CHECKPOINT = Replacement(*CHECKPOINT_OF_SAVED)
SCALED = Replacement(*SCALED_STEP)
MODULE = Replacement(*MODULE_CALL)
GENERATOR = DefaultGenerator()
NO_ANOMALIES = NoAnomalies()
NO_COMPILED_FRAMES = NoCompiledFrames()
NO_TORCH_COMPILE = NoTorchCompile()

ALL: tuple[TemporaryChange, ...] = (
    FUNCTION_CALLS,
    PRINT,
    LOG,
    MAX,
    MIN,
    MATH,
    OPEN,
    IO_OPEN,
    CLOCKS,
    CHECKPOINT,
    SCALED,
    MODULE,
    GENERATOR,
    NO_ANOMALIES,
    NO_COMPILED_FRAMES,
    NO_TORCH_COMPILE,
)
