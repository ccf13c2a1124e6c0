"""Generators: those that a recording may draw from, each with its name, and that nothing but draws moves them.

A recording computes nothing, so a draw would leave a generator as it is. It is moved a little at each draw instead, and
put back in the end: where Python has seeded it meanwhile, or has set its state, it is not where the last draw left it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from foregrad.errors import CaptureError

DEFAULT = "the random number generator"

#: Recordings of several threads would see each other move the default generator.
_one_at_a_time = threading.RLock()


@dataclass
class Stream:
    """A generator, and the states that it had first and has after the last draw."""

    name: str
    generator: torch.Generator
    first: torch.Tensor
    last: bytes
    is_drawn: bool = False

    @property
    def is_moved(self) -> bool:
        """Whether something else than a draw has moved it."""
        return _bytes(self.generator) != self.last


class Generators:
    """Generators by their identity in C++: Python's objects for one generator may differ."""

    def __init__(self) -> None:
        self._streams: dict[int, Stream] = {}
        self.add(DEFAULT, torch.default_generator)

    def add(self, name: str, generator: torch.Generator) -> None:
        state = generator.get_state()
        self._streams.setdefault(_key(generator), Stream(name, generator, state, _bytes(generator)))

    @property
    def drawn(self) -> dict[torch.Generator, str]:
        """Generators of the user's that were drawn from, and their names."""
        return {s.generator: s.name for s in self._streams.values() if s.is_drawn and s.name != DEFAULT}

    def of(self, given: torch.Generator, where: Callable[[], str]) -> torch.Generator | None:
        """The user's object for a generator; None for the default one."""
        known = self._streams.get(_key(given))
        if known is None:
            raise CaptureError(
                "the function draws from a generator that it makes itself, or that is kept where calls do not look "
                f"for it.\n{where()}\nPass it as an argument, or keep it in a variable of the function or as an "
                "attribute of the module."
            )
        return None if known.name == DEFAULT else known.generator

    def draw(self, generator: torch.Generator | None, where: Callable[[], str]) -> None:
        """Note a draw."""
        stream = self._streams[_key(generator or torch.default_generator)]
        if stream.is_moved:
            raise _refusal(stream.name, where())
        torch.empty((), device="cpu").uniform_(generator=stream.generator)
        stream.last, stream.is_drawn = _bytes(stream.generator), True

    @contextmanager
    def watch(self, where: Callable[[], str]) -> Iterator[None]:
        """Find every generator as it was afterwards; refuse what has been moved by anything but a draw."""
        with _one_at_a_time:
            for stream in self._streams.values():
                stream.first, stream.last = stream.generator.get_state(), _bytes(stream.generator)
            try:
                yield
                for stream in self._streams.values():
                    if stream.is_moved:
                        raise _refusal(stream.name, where())
            finally:
                for stream in self._streams.values():
                    if stream.is_drawn or stream.is_moved:
                        stream.generator.set_state(stream.first)


def _refusal(name: str, where: str) -> CaptureError:
    return CaptureError(
        f"the function seeds {name}, or sets its state; a program would draw other numbers.\n{where}\n"
        "Seed it outside, or pass a generator that is seeded there."
    )


def _key(generator: torch.Generator) -> int:
    return int(generator._cdata)  # type: ignore[attr-defined]


def _bytes(generator: torch.Generator) -> bytes:
    return generator.get_state().numpy().tobytes()
