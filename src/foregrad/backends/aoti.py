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
from foregrad.backends.compilable import can_compile, with_memory
from foregrad.backends.cpp_builds import stopped_by_interrupts
from foregrad.backends.guarded_code import Guarded
from foregrad.backends.inductor import Fuser, first_line, no_library, one_at_a_time
from foregrad.backends.numbers_as_tensors import with_tensors
from foregrad.core.errors import FallbackWarning
from foregrad.core.generated import load_source
from foregrad.process.progress import part
from foregrad.program.recompute_marks import copied
from foregrad.torch_private.cpp_builds import failed_build


def as_library(graph: fx.GraphModule, name: str, rng: str) -> Runner:
    """A graph as a shared library, or as Inductor makes it where it cannot be one."""
    graph, fuser = with_memory(graph), Fuser(rng, winograd=False)
    if not can_compile(graph):
        return fuser(graph, name)
    try:
        with part(f"compile {name}"), stopped_by_interrupts(), one_at_a_time, fuser.settings(graph):
            with part("lower"):
                used = _with_used_inputs(graph)
                lowered = fuser.lowered(used)
            made = library(lowered, is_backward=name == "backward")
            return Guarded.of(_with_all_inputs(graph, with_tensors(used, made)), graph, name)
    except Exception as error:  # noqa: BLE001  whatever a compiler raises, the next backend is right
        made_by_inductor = fuser(graph, name)
        if failed_build(error) and isinstance(made_by_inductor, Guarded):
            return made_by_inductor.but(no_library(graph, name, error))
        _warn_refused(first_line(error))
        return made_by_inductor


def _with_used_inputs(graph: fx.GraphModule) -> fx.GraphModule:
    """The same graph, taking only what it reads or returns: for the rest it may be given None, as for a gradient that
    is replaced, and a library takes nothing but tensors."""
    if all(n.users for n in graph.graph.nodes if n.op == "placeholder"):
        return graph
    made = copied(graph)
    for node in list(made.graph.nodes):
        if node.op == "placeholder" and not node.users:
            made.graph.erase_node(node)
    return made


def _with_all_inputs(graph: fx.GraphModule, run: Runner) -> Runner:
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    if all(n.users for n in inputs):
        return run
    taken, used = (", ".join(n.name for n in some) for some in (inputs, [n for n in inputs if n.users]))
    return load_source(f"def used({taken}):\n    return run({used})\n", {"run": run}, "used")


@cache
def _warn_refused(reason: str) -> None:
    warnings.warn(
        f'a graph cannot be a library, so backend="inductor" runs it, with the same results: {reason}',
        FallbackWarning,
        stacklevel=5,
    )
