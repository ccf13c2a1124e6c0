"""Step: a training step that runs captured programs, with everything that it reads and changes declared."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from foregrad.api.captured import Capture
from foregrad.api.compiled import Compiled
from foregrad.api.options import options_of, refuse_keywords
from foregrad.backends.backend import Backend
from foregrad.backends.eager import compile_graph
from foregrad.cache.key.sources import Sources
from foregrad.cache.serialize.cached_calls import CaptureOrigin
from foregrad.cache.serialize.lookup import Lookup, ReadCall
from foregrad.cache.store.cache import Cache
from foregrad.core.errors import CannotKeep, CaptureError, CreatesState
from foregrad.runtime.options import Options, Pass
from foregrad.torch_private.native_code import has_hidden_hooks
from foregrad.torch_private.training import tell_it_steps

if TYPE_CHECKING:
    from foregrad.api.capture import Captured
    from foregrad.record.symbols.varying import Dimensions


def step(
    *state: Any,
    backend: str | Backend | None = None,
    passes: Sequence[Pass] = (),
    rng: str = "eager",
    regions: str = "auto",
    python: str = "warn",
    refused: str = "error",
    dynamic: bool | Mapping[str, Any] | None = None,
    questions: str = "tree",
    cache: bool | str | os.PathLike[str] | Cache = True,
    progress: bool = True,
    **others: Any,
) -> Callable[[Callable[..., Any]], Step]:
    """A decorator for a training step: forward, backward and optimizer as one program.

        @fg.step(model, optimizer)
        def train(x, y):
            optimizer.zero_grad()
            loss = loss_of(model(x), y)
            loss.backward()
            optimizer.step()
            return loss

    `state` are the modules, optimizers, schedulers and tensors that the step reads and changes. They stay what they
    are: each call leaves them as the step itself would. Numbers of the optimizers, such as learning rates, are read at
    each call.

    What the step changes in Python beside that (a counter on a module, a list that grows, a flag), and what it prints
    or logs, happens at capture only: `python="warn"` names each such thing once, `"error"` refuses it, `"allow"` is
    quiet.

    `backend`, `passes`, `rng`, `regions`, `dynamic`, `questions`, `refused`, `cache` and `progress` are those of
    `fg.compile`.
    """
    refuse_keywords("fg.step", others)
    for one in state:
        _check(one)
    options = options_of(
        backend=backend,
        passes=passes,
        rng=rng,
        regions=regions,
        dynamic=dynamic,
        questions=questions,
        python=python,
        refused=refused,
        cache=cache,
        progress=progress,
    )
    return lambda function: Step(function, options, state)


def _check(one: Any) -> None:
    """Whether this can be state of a step."""
    if isinstance(one, torch.optim.LBFGS):
        raise CaptureError(
            "LBFGS evaluates the loss as often as its value says, which no fixed program can do.\nLeave its step "
            "outside, and compile the function that gives the loss with fg.compile."
        )
    kinds = (torch.nn.Module, torch.Tensor, torch.optim.Optimizer, LRScheduler, torch.amp.GradScaler)
    if not isinstance(one, kinds):
        raise TypeError(
            "fg.step takes modules, tensors, optimizers, schedulers and GradScalers as state, not a "
            f"{type(one).__name__}"
        )


class Step(Compiled):
    """A training step that runs its captured programs."""

    def __init__(self, function: Callable[..., Any], options: Options, state: tuple[Any, ...]) -> None:
        super().__init__(function, options)
        self.state = state
        self._does_more = False  # whether the last capture did something in Python

    _kind = "step"
    _advice = "Keep what changes at each call outside the step."
    _instead = 'Do it outside the step, or say fg.step(..., python="allow").'

    def __copy__(self) -> Step:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Step:
        raise CannotKeep(
            f"the step {self.name} cannot be copied: its function names the modules and optimizers that it trains, so "
            "a copy would train the same ones.\nCopy the modules with copy.deepcopy, make an optimizer for their "
            "parameters, and a new fg.step for both."
        )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles by name, as its function does, where it is what a module has under this name."""
        if self._has_name():
            return self.name
        raise CannotKeep(
            f"the step {self.name} cannot be pickled: it is not what {self.__module__} has under that name.\nPickle "
            "the state_dict of what it trains, or write its programs into a file with save(path)."
        )

    def _state(self) -> tuple[Any, ...]:
        return self.state

    def _sources(self, args: Any, kwargs: Any, of_any_size: frozenset[int] = frozenset()) -> Sources | None:
        found = super()._sources(args, kwargs, of_any_size)
        modules = [one for one in self.state if isinstance(one, torch.nn.Module)]
        leaves = [t for t in self.state if isinstance(t, torch.Tensor)] + [p for m in modules for p in m.parameters()]
        if found is None or not any(map(has_hidden_hooks, leaves)):
            return found
        return replace(found, unsure=(*found.unsure, "a parameter has hooks on the accumulator of its gradient"))

    def _why_not_kept(self) -> str | None:
        return "it is not kept, since it does something in Python when it is captured" if self._does_more else None

    def _find(
        self, lookup: Lookup | None, candidates: Iterator[ReadCall] | CaptureOrigin, args: Any, kwargs: Any
    ) -> Capture | CaptureOrigin:
        found = super()._find(lookup, candidates, args, kwargs)
        if isinstance(found, Capture):
            for one in self.state:
                if isinstance(one, torch.optim.Optimizer):
                    tell_it_steps(one)
        return found

    def _capture(self, args: Any, kwargs: Any) -> Any:
        try:
            return super()._capture(args, kwargs)
        except CreatesState:
            return self._target(*args, **kwargs)

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        from foregrad.api.capture import capture_call

        numbers = self._numbers.plan(self._target, args, kwargs)
        captured = capture_call(
            self._target,
            args,
            kwargs,
            state=self.state,
            python=self.options.python,
            varying=dims,
            numbers=numbers,
            asks=self._asks(dims),
        )
        self._does_more = bool(captured.changes)
        return self._told(self._numbers.after(captured, numbers))

    def _make(self, captured: Captured, options: Options, *rest: Any) -> Capture:
        """A program that creates state runs once, op by op: the next call finds the state, and captures again."""
        if captured.creates_state and options.backend is self.options.backend:
            made = super()._make(captured, self._options_of(captured), *rest)
            return replace(made, reason=f"{made.reason}; it creates state, so it runs once, op by op")
        return super()._make(captured, options, *rest)

    def _options_of(self, captured: Captured) -> Options:
        return replace(self.options, backend=compile_graph) if captured.creates_state else self.options
