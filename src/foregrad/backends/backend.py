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
from typing import Any

from torch import fx

Runner = Callable[..., tuple[Any, ...]]
Backend = Callable[[fx.GraphModule, str], Runner]
