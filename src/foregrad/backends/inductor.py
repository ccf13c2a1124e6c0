"""The `inductor` backend: graphs as fused C++ loops, made by torch's Inductor.

What repeats in a graph is compiled once and called many times, so that the time to compile grows with what is distinct
in a model and not with its depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import FromList, Runner
from foregrad.backends.build_library import library
from foregrad.backends.compilable import can_compile, is_opaque, line_of, name_of, opaque_ops, with_memory
from foregrad.backends.cpp_builds import stopped_by_interrupts
from foregrad.backends.cpp_wrapper import may_be_native
from foregrad.backends.eager import compile_graph as run_op_by_op
from foregrad.backends.guarded_code import Guarded, fitting
from foregrad.backends.kernels.build import build_kernels
from foregrad.backends.kernels.winograd import build_convolutions, called_instead, has_convolutions
from foregrad.backends.kernels.write_call_sequence import function_in
from foregrad.backends.lower import Lowered, lower
from foregrad.backends.numbers_as_tensors import with_numbers, with_tensors
from foregrad.backends.stitch import Compiled, stitch
from foregrad.backends.toolchain import prepare
from foregrad.core.spec import symbols_in
from foregrad.functionalize.redraw import keeps_states
from foregrad.process.forks import lock
from foregrad.process.no_warnings import no_warnings
from foregrad.process.progress import log, part
from foregrad.program.dead_code import is_view
from foregrad.record.impure import is_random
from foregrad.regions.fallbacks import FAILED, SECOND, Fallback, Why, together
from foregrad.regions.regions import WHOLE, Region, Regions, apart, find_regions, whole
from foregrad.torch_private.cpp_builds import failed_build
from foregrad.torch_private.dispatch import autocast_disabled
from foregrad.torch_private.inductor import (
    built_later,
    compile_with_inductor,
    draw_inside_loops,
    inductor_decompositions,
    inductor_draws_like_eager,
)
from foregrad.torch_private.inductor_text import function_of
from foregrad.torch_private.ops import OpOverload

#: Inductor keeps what it is doing in global variables.
one_at_a_time = lock()

Fallbacks = tuple[Fallback, ...]


@dataclass(frozen=True, eq=False)
class Built:
    """A region that can be called, and what of it runs op by op."""

    run: Compiled
    fallbacks: Fallbacks = ()


@dataclass(frozen=True)
class Fuser:
    """Compiles graphs with Inductor; the options are those of `compilers.Inductor`."""

    rng: str = "eager"
    regions: str = "auto"
    winograd: bool = True

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        return self.start(graph, name)()

    def start(self, graph: fx.GraphModule, name: str) -> Callable[[], Runner]:
        """Write the code of a graph. The C++ compiler builds it while other graphs are begun."""
        if self.rng != "eager" and keeps_states(graph.graph):  # of numbers that only eager's generators draw again
            return replace(self, rng="eager").start(graph, name)
        graph = with_memory(graph)
        with part(f"find regions of {name}"):
            found = find_regions(graph, is_opaque) if self.regions == "auto" else whole(graph)
        finish = self._start_all(found, name)

        def finished() -> Runner:
            with part(f"build {name}"), stopped_by_interrupts():
                run, fallbacks = finish()
                return Guarded.of(with_tensors(graph, run), graph, name, found.with_fallbacks(fallbacks))

        return finished

    def _start_all(self, found: Regions, half: str, **options: bool) -> Callable[[], tuple[Runner, list[Fallbacks]]]:
        """Begin every region; what is returned finishes them, and says what each of them runs op by op."""
        num = len(found.distinct)
        titles = [f"{half}, region {place + 1} of {num}" if num > 1 else half for place in range(num)]
        with stopped_by_interrupts():
            begun = [self._start(r, title, half, **options) for r, title in zip(found.distinct, titles, strict=True)]

        def finish() -> tuple[Runner, list[Fallbacks]]:
            built = [one() for one in begun]
            return stitch(found, [one.run for one in built], half), [one.fallbacks for one in built]

        return finish

    def _start_around(self, graph: fx.GraphModule, half: str) -> Callable[[], Built]:
        """Ops that no loop can stand for run by themselves, such as a fused optimizer, and what is around them is
        compiled."""
        found = apart(graph, is_opaque)
        if not any(can_compile(region.graph) for region in found.distinct):
            return lambda: _one_by_one(graph, half, opaque_ops(graph))
        finish = self._start_all(found, half, is_apart=True)

        def finished() -> Built:
            run, fallbacks = finish()
            each = zip(found.distinct, fallbacks, strict=True)
            return Built(FromList(run), together(one.times(r.count) for r, all_of in each for one in all_of))

        return finished

    def _start(self, region: Region, title: str, half: str, *, is_apart: bool = False) -> Callable[[], Built]:
        """Begin a region; op by op where a compiler cannot do it, or fails."""
        graph = region.graph
        if not can_compile(graph):
            alone = partial(_one_by_one, graph, half, opaque_ops(graph))
            return alone if is_apart else self._start_around(graph, half)

        def op_by_op(error: Exception) -> Built:
            return _one_by_one(graph, half, (_failed(graph, title, error),))

        try:
            with part(f"compile {title}"), one_at_a_time, self.settings(graph):
                finish = self._generate(
                    graph, title, as_library=_is_light(region) and not has_sizes(graph), is_backward=half == "backward"
                )
        except Exception as error:  # noqa: BLE001  whatever a compiler raises, the op-by-op form of the graph is right
            failed = op_by_op(error)
            return lambda: failed

        def finished() -> Built:
            try:
                return finish()
            except Exception as error:  # noqa: BLE001  as above
                return op_by_op(error)

        return finished

    def _generate(
        self, graph: fx.GraphModule, title: str, *, as_library: bool, is_backward: bool
    ) -> Callable[[], Built]:
        """Write the code of a graph; what is returned waits until it is built."""
        fallbacks: Fallbacks = ()
        with part("ask the toolchain"):
            prepare()
        with part("lower"):
            lowered = self.lowered(graph)
        if as_library and not may_be_native(lowered.graph):
            try:
                boxed = Built(FromList(library(lowered, is_backward=is_backward)))
                return lambda: boxed
            except Exception as error:  # noqa: BLE001  what cannot be a library is called from Python
                log.info("a light graph cannot be a library, so Python calls its kernels: %s", first_line(error))
                fallbacks = (no_library(graph, title, error),) if failed_build(error) else ()
                lowered = self.lowered(graph)
        build = partial(build_kernels, inputs=lowered.inputs)
        with part("generate code"), built_later(build) as waits:
            made = compile_with_inductor(
                lowered.graph, lowered.inputs, _tensor_places(lowered), is_backward=is_backward
            )

        convolutions = build_convolutions() if self.winograd and has_convolutions(lowered.graph) else None

        def finish() -> Built:
            for wait in waits:
                wait()
            call = made.current_callable
            instead = {} if convolutions is None else called_instead(convolutions())
            return Built(function_in(call.__globals__) or function_of(made.source_code, call, instead), fallbacks)

        return finish

    def lowered(self, graph: fx.GraphModule) -> Lowered:
        """A graph in the ops that Inductor wants, with its random numbers drawn as `rng` says."""
        table, aten = inductor_decompositions(), torch.ops.aten
        if self.rng == "eager":
            return lower(graph, {**table, aten.bernoulli.default: _bernoulli_like_eager})
        lowered = lower(graph, {**table, aten.bernoulli.p: _bernoulli})
        draw_inside_loops(lowered.graph, lowered.mode)
        return lowered

    @contextmanager
    def settings(self, graph: fx.GraphModule) -> Iterator[None]:
        """The context in which a graph is compiled."""
        draws = any(isinstance(n.target, OpOverload) and is_random(n.target) for n in graph.graph.nodes)
        as_eager = inductor_draws_like_eager() if self.rng == "eager" and draws else nullcontext()
        with no_warnings(), autocast_disabled(), as_eager:  # what Inductor uses of torch is not the user's concern
            yield


#: Bytes of a value that a loop goes over in about the time that Python takes to call it.
_LIGHT_BYTES = 1 << 16


def _is_light(region: Region) -> bool:
    """Whether what takes time is to call kernels, rather than to run them: then a graph that needs ops of torch's
    between its kernels is a library, which takes some seconds more to build. The regions of a deep model are not worth
    these: there are several of them to wait for."""
    nodes = region.graph.graph.nodes
    sizes = [s.plain().num_bytes for n in nodes if n.op == "call_function" and (s := n.meta.get("spec")) is not None]
    return region.label == WHOLE and sum(sizes) <= _LIGHT_BYTES * len(sizes)


def has_sizes(graph: fx.GraphModule) -> bool:
    """Whether sizes vary in a graph."""
    return any(symbols_in(node.meta.get("spec")) for node in graph.graph.nodes)


def _bernoulli(like: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None) -> torch.Tensor:
    if generator is not None:
        raise NotImplementedError("Inductor draws from no generator of the user's")
    return (torch.rand_like(like, dtype=torch.float32) < p).to(like.dtype)


def _bernoulli_like_eager(p: torch.Tensor, *, generator: torch.Generator | None = None) -> torch.Tensor:
    """By eager's kernel: Inductor would draw 32-bit floats for any dtype."""
    drawn: torch.Tensor = torch.ops.aten.bernoulli.Tensor(torch.empty_like(p), p, generator=generator)
    return drawn


def _tensor_places(lowered: Lowered) -> list[int]:
    results: Any = lowered.graph.graph.output_node().args[0]
    return [place for place, result in enumerate(results) if isinstance(result, fx.Node)]


def _one_by_one(graph: fx.GraphModule, name: str, fallbacks: Fallbacks) -> Built:
    return Built(FromList(with_numbers(graph, fitting(run_op_by_op(graph, name), graph))), fallbacks)


def _failed(graph: fx.GraphModule, title: str, error: Exception) -> Fallback:
    """That a compiler failed, whether or not it should have."""
    return _fallback(graph, Why(FAILED, f"Inductor could not compile {title}: {first_line(error)}"))


def no_library(graph: fx.GraphModule, title: str, error: Exception) -> Fallback:
    """That a compiler failed at a library, so that Python calls the kernels."""
    why = f"the library of {title} could not be built, so Python calls its kernels: {first_line(error)}"
    return _fallback(graph, Why(SECOND, why))


def _fallback(graph: fx.GraphModule, why: Why) -> Fallback:
    ops = [node for node in graph.graph.nodes if node.op == "call_function" and not is_view(node)]
    return Fallback(len(ops), name_of(ops[0]), why, next(filter(None, map(line_of, ops)), ""))


def first_line(error: Exception) -> str:
    """What went wrong, in a line: of what a compiler said, the line that names the error."""
    error = failed_build(error) or error
    said = str(getattr(error, "output", error)).strip().splitlines() or ["nothing was said"]
    return f"{type(error).__name__}: {next((line for line in said if 'error' in line.lower()), said[0]).strip()}"
