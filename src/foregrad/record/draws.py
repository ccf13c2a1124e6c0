"""Draws: where each generator stands while a function is recorded, and which ops draw numbers that were drawn before.

A recorded op draws nothing. In place of that it gives its generator a new seed, by which the place in the stream of
random numbers is known. Whoever takes the state of the generator and sets it later, as a checkpoint does around what it
computes again, leads the generator back to a place at which an op has drawn before: the next op draws the same numbers.
"""

from __future__ import annotations

import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.process.forks import lock
from foregrad.record.generators import identity
from foregrad.record.session import GENERATOR
from foregrad.torch_private.dispatch import no_dispatch_modes

_DEFAULT = "the random number generator"


@dataclass
class _Stream:
    """A generator in use: its name, its state on entry, and the place up to which the program has drawn."""

    name: str
    generator: torch.Generator
    state: torch.Tensor
    at: int
    is_moved: bool = False

    def move(self, place: int) -> None:
        self.at, self.is_moved = place, True
        self.generator.manual_seed(place)

    @property
    def place(self) -> int | None:
        """Where the generator is; None if someone has set a state from outside."""
        with no_dispatch_modes():
            if not self.is_moved and not torch.equal(self.generator.get_state(), self.state):
                return None
        return self.generator.initial_seed()

    def refusal(self, where: str) -> CaptureError:
        return CaptureError(
            f"the function seeds {self.name}, or sets its state; a program would draw other numbers.\n{where}\n"
            "Seed it outside, or pass a generator that is seeded there."
        )

    def refusal_of_another(self, where: str) -> CaptureError:
        return CaptureError(
            f"{self.name} is led back to where it was, and there another op draws than before, other numbers than in "
            f"the first run; so it is in a selective checkpoint that saves some random numbers.\n{where}\n"
            "Let it save all of them or none."
        )

    def refusal_after_data(self, where: str) -> CaptureError:
        return CaptureError(
            f"{self.name} is set back to an earlier state, and an op that samples by rejection (such as poisson) "
            f"has other data than in the first run, so what comes after it draws other numbers.\n{where}\n"
            "Let it draw last, or outside."
        )


class Draws:
    """Every random op met so far, by the place at which it draws."""

    def __init__(self) -> None:
        self._places = itertools.count(secrets.randbits(62))
        self._drawn: dict[int, tuple[int, Any, int]] = {}  # place: the op, what it looks like, the place after it
        self._streams: dict[int, _Stream] = {}
        self._unsure: set[int] = set()  # states after a rejection sampler that ran again, perhaps on other data
        self._may_differ = True  # whether ops that run again may have other data; in a backward they have the same

    @contextmanager
    def run(self, where: str, generators: Iterable[tuple[str, torch.Generator]]) -> Iterator[None]:
        """Record a forward or a backward, which may use these generators; in the end every generator is as it was."""
        generators = list(generators)
        with GENERATOR.of_this_thread() as default, _alone([generator for _, generator in generators], where):
            around, self._streams = self._streams, {}
            stream = _Stream(_DEFAULT, default, _state(default), default.initial_seed())
            self._streams[identity(torch.default_generator)] = stream
            self._may_differ = not self._drawn
            if self._drawn:  # a backward starts wherever the generator then is
                stream.move(next(self._places))
            try:
                for name, generator in generators:
                    self._add(name, generator)
                yield
                for stream in self._streams.values():
                    if stream.place != stream.at:
                        raise stream.refusal(where)
            finally:
                with no_dispatch_modes():
                    for stream in self._streams.values():
                        stream.generator.set_state(stream.state)
                self._streams = around

    @property
    def has_drawn(self) -> bool:
        return bool(self._drawn)

    @property
    def entry_states(self) -> dict[int, torch.Tensor]:
        """The states of the generators in use, by identity, as the call finds them."""
        return {key: stream.state for key, stream in self._streams.items()}

    def repeats(
        self,
        index: int,
        look: Any,
        generator: torch.Generator | None,
        where: Callable[[], str],
        *,
        goes_by_data: bool = False,
    ) -> int | None:
        """The op whose numbers op `index` draws again, if any has drawn at the place at which the generator is."""
        stream = self._streams[identity(torch.default_generator if generator is None else generator)]
        at = stream.place
        first, known, after = self._drawn.get(-1 if at is None else at, (None, look, -1))
        if known != look:
            raise stream.refusal_of_another(where())
        if first is None and at != stream.at:
            raise stream.refusal(where())
        if first is not None:
            if at in self._unsure:
                raise stream.refusal_after_data(where())
            self._unsure |= {after} if goes_by_data and self._may_differ else set()
            stream.generator.manual_seed(after)
            return first
        self._may_differ = True  # with what is new
        self._drawn[stream.at] = (index, look, after := next(self._places))
        stream.move(after)
        return None

    def _add(self, name: str, generator: torch.Generator) -> None:
        self._streams[identity(generator)] = stream = _Stream(name, generator, _state(generator), 0)
        stream.move(next(self._places))


_locks: dict[int, threading.RLock] = {}
_PATIENCE_SECONDS = 60.0


@contextmanager
def _alone(generators: Iterable[torch.Generator], where: str) -> Iterator[None]:
    """Let no other recording use these generators of the user's, which it moves and puts back."""
    with ExitStack() as stack:
        for one in sorted(set(map(identity, generators))):
            own = _locks.setdefault(one, lock())
            if not own.acquire(timeout=_PATIENCE_SECONDS):
                raise CaptureError(
                    f"another thread has been capturing with the same generator for a minute.\n{where}\nGive each "
                    "thread a generator of its own."
                )
            stack.callback(own.release)
        yield


def _state(generator: torch.Generator) -> torch.Tensor:
    with no_dispatch_modes():
        return generator.get_state()
