"""Turns: the default generator is that of all threads, so who needs it in another state for a while does that alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from foregrad.substrate import no_dispatch_modes

#: Held by whoever has put the default generator into another state.
turn = threading.RLock()


@contextmanager
def generator_as_it_was() -> Iterator[torch.Generator]:
    """The default generator, which is put back afterwards."""
    default = torch.default_generator
    with turn:
        with no_dispatch_modes():
            before = default.get_state()
        try:
            yield default
        finally:
            with no_dispatch_modes():
                default.set_state(before)
