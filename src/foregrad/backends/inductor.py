"""The `inductor` backend: graphs as fused C++ loops, made by torch's Inductor.

What repeats in a graph is compiled once and called many times, so that the time to compile grows with what is distinct
in a model and not with its depth.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Runner
from foregrad.backends.eager import compile_graph as run_op_by_op
from foregrad.backends.guarded import Guarded, can_compile, is_opaque, with_memory
from foregrad.backends.lower import Lowered, lower
from foregrad.backends.numbers import with_numbers, with_tensors
from foregrad.backends.stitch import stitch
from foregrad.backends.toolchain import prepare
from foregrad.program.clean import is_random
from foregrad.regions.regions import Region, Regions, apart, find_regions, whole
from foregrad.substrate import OpOverload, autocast_disabled
from foregrad.substrate_inductor import (
    compile_with_inductor,
    draw_inside_loops,
    inductor_decompositions,
    inductor_draws_like_eager,
)
from foregrad.words.progress import part

#: Inductor keeps what it is doing in global variables.
one_at_a_time = threading.RLock()

Boxed = Callable[[list[Any]], Any]  # empties the list that it is given


@dataclass(frozen=True)
class Inductor:
    """Compiles graphs with Inductor. `rng="eager"` draws the numbers that eager draws, `"fast"` Inductor's own."""

    rng: str = "eager"
    regions: str = "auto"

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        graph = with_memory(graph)
        with part(f"find regions of {name}"):
            found = find_regions(graph) if self.regions == "auto" else whole(graph)
        compiled = [self._compile(region, name, place, found) for place, region in enumerate(found.distinct)]
        return Guarded(with_tensors(graph, stitch(found, compiled, name, boxed=True)), graph, name, found)

    def _compile(self, region: Region, name: str, place: int, found: Regions) -> Boxed:
        if not can_compile(region.graph):
            return self._compile_around(region.graph, name)
        of = f", region {place + 1} of {len(found.distinct)}" if len(found.distinct) > 1 else ""
        try:
            with part(f"compile {name}{of}"), one_at_a_time, self.settings(region.graph):
                return self._compile_graph(region.graph, is_backward=name == "backward")
        except Exception as error:  # noqa: BLE001  whatever a compiler raises, the op-by-op form of the graph is right
            what = f"Inductor could not compile {name}{of}, which runs op by op: {_first_line(error)}"
            warnings.warn(what, stacklevel=2)
        return _one_by_one(region.graph, name)

    def _compile_around(self, graph: fx.GraphModule, name: str) -> Boxed:
        """Ops that no loop can stand for run by themselves, such as a fused optimizer, and what is around them is
        compiled."""
        found = apart(graph, is_opaque)
        if not any(can_compile(region.graph) for region in found.distinct):
            return _one_by_one(graph, name)
        parts = [
            self._compile(region, name, place, found) if can_compile(region.graph) else _one_by_one(region.graph, name)
            for place, region in enumerate(found.distinct)
        ]
        run = stitch(found, parts, name, boxed=True)
        return lambda inputs: run(*inputs)

    def _compile_graph(self, graph: fx.GraphModule, *, is_backward: bool) -> Boxed:
        with part("ask the toolchain"):
            prepare()
        with part("lower"):
            lowered = self.lowered(graph)
        with part("generate and build code"):
            made = compile_with_inductor(
                lowered.graph, lowered.inputs, _tensor_places(lowered), is_backward=is_backward
            )
        boxed: Boxed = made.current_callable
        return boxed

    def lowered(self, graph: fx.GraphModule) -> Lowered:
        """A graph in the ops that Inductor wants, with its random numbers drawn as `rng` says."""
        if self.rng == "eager":
            return lower(graph, inductor_decompositions())
        lowered = lower(graph, {**inductor_decompositions(), torch.ops.aten.bernoulli.p: _bernoulli})
        draw_inside_loops(lowered.graph, lowered.mode)
        return lowered

    @contextmanager
    def settings(self, graph: fx.GraphModule) -> Iterator[None]:
        """The context in which a graph is compiled."""
        draws = any(isinstance(n.target, OpOverload) and is_random(n.target) for n in graph.graph.nodes)
        with warnings.catch_warnings(), autocast_disabled():  # what Inductor uses of torch is not the user's concern
            warnings.simplefilter("ignore")
            with inductor_draws_like_eager() if self.rng == "eager" and draws else nullcontext():
                yield


def _bernoulli(like: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    if generator is not None:
        raise NotImplementedError("Inductor draws from no generator of the user's")
    return (torch.rand_like(like, dtype=torch.float32) < p).to(like.dtype)


def _tensor_places(lowered: Lowered) -> list[int]:
    results: Any = lowered.graph.graph.output_node().args[0]
    return [place for place, result in enumerate(results) if isinstance(result, fx.Node)]


def _one_by_one(graph: fx.GraphModule, name: str) -> Boxed:
    run = with_numbers(graph, run_op_by_op(graph, name))
    return lambda inputs: run(*inputs)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
