"""Step: a training step that runs captured programs, with everything that it reads and changes declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from foregrad.backends.backend import Backend
from foregrad.backends.choose import choose
from foregrad.backends.eager import compile_graph
from foregrad.capture import Captured, capture_call
from foregrad.compile import Capture, Compiled
from foregrad.runtime.halves import Pass, Way


def step(
    *state: Any,
    backend: str | Backend | None = None,
    passes: Sequence[Pass] = (),
    rng: str = "eager",
    regions: str = "auto",
    progress: bool = True,
) -> Callable[[Callable[..., Any]], Step]:
    """A decorator for a training step: forward, backward and optimizer as one program.

        @fg.step(model, optimizer)
        def train(x, y):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    `state` are the modules, optimizers and tensors that the step reads and changes. They stay what they are: each call
    leaves them as the step itself would. Numbers of the optimizers, such as learning rates, are read at each call.

    `backend`, `passes`, `rng`, `regions` and `progress` are those of `fg.compile`.
    """
    for one in state:
        if not isinstance(one, (torch.nn.Module, torch.optim.Optimizer, torch.Tensor)):
            raise TypeError(f"fg.step takes modules, optimizers and tensors as state, not a {type(one).__name__}")
    way = Way(choose(backend, rng=rng, regions=regions), tuple(passes), progress)
    return lambda function: Step(function, way, state)


class Step(Compiled):
    """A training step that runs its captured programs."""

    def __init__(self, function: Callable[..., Any], way: Way, state: tuple[Any, ...]) -> None:
        super().__init__(function, way)
        self.state = state

    def _record(self, args: Any, kwargs: Any) -> Captured:
        return capture_call(self._target, args, kwargs, state=self.state)

    def _make(self, captured: Captured, way: Way, *rest: Any) -> Capture:
        """A program that creates state runs once, op by op: the next call finds the state, and captures again."""
        if captured.creates_state:
            made = super()._make(captured, replace(way, backend=compile_graph), *rest)
            return replace(made, reason=f"{made.reason}; it creates state, so it runs once, op by op")
        return super()._make(captured, way, *rest)
