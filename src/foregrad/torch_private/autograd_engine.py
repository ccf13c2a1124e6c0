"""The private names of torch by which the autograd engine is run, and custom Functions are called."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import FunctionType
from typing import Any

import torch
from torch.autograd.function import _SingleLevelFunction

from foregrad.process.temporary import TemporaryChange, name_in

__all__ = ["FUNCTION_CALLS", "accumulate", "apply_of", "functions_take", "run_engine", "with_engine"]


def run_engine(
    sources: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], slots: Sequence[Any], *, create_graph: bool
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`, keeping the graph, past torch function modes: these stay on for hooks and Functions."""
    return torch.autograd.graph._engine_run_backward(
        tuple(sources), tuple(tangents), True, create_graph, tuple(slots), allow_unreachable=True, accumulate_grad=False
    )


def accumulate(sources: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], *, create_graph: bool) -> None:
    """`torch.autograd.backward`, in the same way: what arrives at leaves is added to their .grad."""
    torch.autograd.graph._engine_run_backward(
        tuple(sources), tuple(tangents), True, create_graph, (), allow_unreachable=True, accumulate_grad=True
    )


def with_engine(func: Any, around: Callable[..., AbstractContextManager[Any]]) -> Callable[..., Any]:
    """`torch.autograd.grad` or `backward`, with the engine run inside a context: torch leaves its function modes before
    these functions begin, and hooks and Functions would run without. The context is made for the tensors that the
    engine starts from, whether it keeps the graph and makes one of its own, and where it goes."""

    def run(sources: Any, tangents: Any, keeps: bool, makes: bool, targets: Any = (), *args: Any, **kwargs: Any) -> Any:
        is_adding = kwargs.get("accumulate_grad", False)
        with around(sources, keeps, makes, targets, is_adding):
            given = (sources, tangents, keeps, makes, targets, *args)
            return torch.autograd.graph._engine_run_backward(*given, **kwargs)

    names = {**func.__globals__, "_engine_run_backward": run}
    made = FunctionType(func.__code__, names, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """How to call a Function past the part of torch that looks for transforms."""
    return super(_SingleLevelFunction, function).apply  # type: ignore[misc]


@contextmanager
def functions_take(swap: Callable[[Any], Any]) -> Iterator[None]:
    """Custom Functions that this thread calls are given what `swap` makes of each argument: no mode sees the call."""
    with FUNCTION_CALLS.held(swap):
        yield


class _FunctionCalls(TemporaryChange):
    places = (name_in(_SingleLevelFunction, "apply"),)

    def change(self) -> None:
        _SingleLevelFunction.apply = classmethod(_apply)  # type: ignore[attr-defined]

    def put_back(self) -> None:
        if "apply" in vars(_SingleLevelFunction):
            del _SingleLevelFunction.apply  # type: ignore[attr-defined]


def _apply(function: Any, *args: Any, **kwargs: Any) -> Any:
    swap = FUNCTION_CALLS.here
    if swap is not None:
        args, kwargs = tuple(map(swap, args)), {name: swap(value) for name, value in kwargs.items()}
    return apply_of(function)(*args, **kwargs)


#: How custom Functions are called, in all threads.
FUNCTION_CALLS = _FunctionCalls()
