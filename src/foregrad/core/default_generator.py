"""The default generator is that of all threads, so who needs it in another state for a while does that alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from foregrad.process.forks import lock
from foregrad.process.temporary import TemporaryChange
from foregrad.torch_private.dispatch import no_dispatch_modes

#: TemporaryChange by whoever has put the default generator into another state.
turn = lock()


@contextmanager
def generator_as_it_was() -> Iterator[torch.Generator]:
    """The default generator, which is put back afterwards."""
    default = torch.default_generator
    with turn, _State().held():
        yield default


class _State(TemporaryChange):
    """The state of the default generator, which comes back, in a child of the process too."""

    places = ("torch.default_generator.get_state()",)
    before: torch.Tensor | None = None

    def change(self) -> None:
        with no_dispatch_modes():
            self.before = torch.default_generator.get_state()

    def put_back(self) -> None:
        if self.before is not None:
            with no_dispatch_modes():
                torch.default_generator.set_state(self.before)
