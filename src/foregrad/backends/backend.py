"""Backends: what makes a callable of a graph.

A backend is any function that takes a graph of ops and a name for it, and returns a function from the values of the
graph's inputs to a tuple of the values of its outputs:

    def my_backend(graph, name):
        return graph.forward

    fg.compile(model, backend=my_backend)

The graph is pure: it writes to none of its inputs. Each input and value has its `Spec` in `node.meta["spec"]`; outputs
must have the shapes, strides and dtypes that are written there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import fx

Runner = Callable[..., tuple[Any, ...]]
Backend = Callable[[fx.GraphModule, str], Runner]


@runtime_checkable
class Starts(Protocol):
    """A backend that can begin a graph and finish it later: meanwhile the next one is begun."""

    def start(self, graph: fx.GraphModule, name: str) -> Callable[[], Runner]: ...


def start(backend: Backend, graph: fx.GraphModule, name: str) -> Callable[[], Runner]:
    """Begin to compile a graph, if the backend can, else compile it; what is returned finishes that."""
    if isinstance(backend, Starts):
        return backend.start(graph, name)
    made = backend(graph, name)
    return lambda: made


@dataclass(frozen=True, eq=False)
class FromList:
    """A function of values that is called with a list of them."""

    run: Runner

    def __call__(self, inputs: list[Any]) -> Any:
        return self.run(*inputs)
