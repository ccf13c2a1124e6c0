"""The `aoti` backend: each graph as one shared library, called with no Python between its kernels.

Inductor's ahead-of-time mode writes the C++. What is the same in all libraries is compiled once for each machine, so
that a library takes about as long as Inductor's own kernels do. A library that was built before is found again.
"""

from __future__ import annotations

import warnings
from functools import cache

from torch import fx

from foregrad.backends.backend import Runner
from foregrad.backends.build_library import library
from foregrad.backends.builds import stopped_by_interrupts
from foregrad.backends.compilable import can_compile, with_memory
from foregrad.backends.guarded import Guarded
from foregrad.backends.inductor import Fuser, first_line, one_at_a_time
from foregrad.backends.numbers import with_tensors
from foregrad.words.progress import part


def as_library(graph: fx.GraphModule, name: str, rng: str) -> Runner:
    """A graph as a shared library, or as Inductor makes it where it cannot be one."""
    graph, fuser = with_memory(graph), Fuser(rng, winograd=False)
    if not can_compile(graph):
        return fuser(graph, name)
    try:
        with part(f"compile {name}"), stopped_by_interrupts(), one_at_a_time, fuser.settings(graph):
            with part("lower"):
                lowered = fuser.lowered(graph)
            made = library(lowered, is_backward=name == "backward")
            return Guarded.of(with_tensors(graph, made), graph, name)
    except Exception as error:  # noqa: BLE001  whatever a compiler raises, the next backend is right
        _warn_refused(first_line(error))
        return fuser(graph, name)


@cache
def _warn_refused(reason: str) -> None:
    warnings.warn(
        f'a graph cannot be a library, so backend="inductor" runs it, with the same results: {reason}', stacklevel=5
    )
