"""The backends that compile, as values: their names and options. What compiles is imported when a graph is compiled, so
that a process whose programs are found in a cache never does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import fx

from foregrad.backends.backend import Backend, Runner


@dataclass(frozen=True)
class Inductor:
    """Compiles graphs with Inductor. `rng="eager"` draws the numbers that eager draws, `"fast"` Inductor's own.
    `winograd` computes convolutions with fewer multiplications, where that is quicker."""

    rng: str = "eager"
    regions: str = "auto"
    winograd: bool = True

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        return self.start(graph, name)()

    def start(self, graph: fx.GraphModule, name: str) -> Callable[[], Runner]:
        """Write the code of a graph. The C++ compiler builds it while other graphs are begun."""
        from foregrad.backends.inductor import Fuser

        return Fuser(self.rng, self.regions, self.winograd).start(graph, name)


@dataclass(frozen=True)
class AOTI:
    """Compiles graphs to shared libraries; draws numbers as `Inductor` does."""

    rng: str = "eager"

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        from foregrad.backends.aoti import as_library

        return as_library(graph, name, self.rng)


def compiles(backend: Backend) -> bool:
    """Whether a backend is one of these."""
    return isinstance(backend, (Inductor, AOTI))
