"""The `inductor` backend: graphs as fused C++ loops, made by torch's Inductor."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import fx

from foregrad.backends.backend import Runner
from foregrad.backends.eager import compile_graph as eager
from foregrad.backends.lower import lower
from foregrad.backends.toolchain import prepare
from foregrad.program.clean import is_random
from foregrad.substrate import OpOverload, compile_with_inductor, inductor_decompositions, inductor_draws_like_eager


@dataclass(frozen=True)
class Inductor:
    """Compiles graphs with Inductor. `rng="eager"` draws the numbers that eager draws, `"fast"` Inductor's own."""

    rng: str = "eager"

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        if not any(n.op == "call_function" for n in graph.graph.nodes):
            return eager(graph, name)
        prepare()
        with self.settings(graph):
            lowered = lower(graph, inductor_decompositions())
            results: Any = lowered.graph.graph.output_node().args[0]
            fixed = [place for place, result in enumerate(results) if isinstance(result, fx.Node)]
            made = compile_with_inductor(lowered.graph, lowered.inputs, fixed, is_backward=name == "backward")
        return _unboxed(made.current_callable, lowered.constants)

    def settings(self, graph: fx.GraphModule) -> Any:
        """The context in which a graph is compiled."""
        is_random_ = any(isinstance(n.target, OpOverload) and is_random(n.target) for n in graph.graph.nodes)
        return inductor_draws_like_eager() if self.rng == "eager" and is_random_ else nullcontext()


def _unboxed(boxed: Any, constants: tuple[Any, ...]) -> Runner:
    if constants:
        return lambda *inputs: boxed([*inputs, *constants])
    return lambda *inputs: boxed([*inputs])
