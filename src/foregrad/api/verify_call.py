"""Verify a call: compiled code against the same ops run one by one, on the same data.

Nothing of the call is left behind: the halves run on its inputs, are compared, and the call ends before it writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Backend, Runner
from foregrad.backends.eager import compile_graph
from foregrad.program.program import Program
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, exclude_keys
from foregrad.torch_private.fx_graph import lazy_graph_module

#: Rounding explains a difference of this many units in the last place of a result's largest element, and as many times
#: what the result changes by when every input changes by one: sums that cancel lose digits whoever computes them.
_UNITS = 64


@dataclass(frozen=True)
class ResultDifference:
    """How far a result of the compiled code is from that of the ops one by one."""

    half: str
    role: str
    name: str
    largest: float  # element of the difference
    allowed: float  # what rounding explains of it

    @property
    def is_explained(self) -> bool:
        return self.largest <= self.allowed


@dataclass(frozen=True)
class Verification:
    """Every result of a call compared; prints as a table."""

    name: str
    differences: tuple[ResultDifference, ...]
    first_op: str | None  # the first op whose result differs by more than rounding, with its line

    @property
    def is_equal(self) -> bool:
        return all(d.is_explained for d in self.differences)

    def __str__(self) -> str:
        rows = [("", "result", "difference", "rounding explains", "")]
        for d in self.differences:
            mark = "" if d.is_explained else "DIFFERS"
            rows.append((d.half, f"{d.role} {d.name}", f"{d.largest:.1e}", f"{d.allowed:.1e}", mark))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        verdict = "equal but for rounding" if self.is_equal else f"first op that differs: {self.first_op}"
        return "\n".join([f"{self.name}: {verdict}", *lines])


class Compared(Exception):
    """Ends a call once its halves have been compared."""


@dataclass
class Checker:
    """A backend that runs what another one makes beside the ops one by one."""

    backend: Backend
    halves: dict[str, tuple[fx.GraphModule, Runner]] = field(default_factory=dict)
    differences: list[ResultDifference] = field(default_factory=list)
    first_op: str | None = None
    program: Program | None = None

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        self.halves[name] = graph, self.backend(graph, name)
        return self.compare

    def compare(self, *inputs: Any) -> tuple[Any, ...]:
        """Compare forward on these inputs, then backward on what it saves and on random tangents."""
        assert self.program is not None
        halves, signature = self.program.halves, self.program.signature
        with _where_they_were(generators_of(self.program.graph)):
            results = self._compare("forward", inputs, [signature.outputs[i] for i in halves.outputs])
            if "backward" in self.halves:
                values = {"input": inputs, "output": results, "value": results[len(halves.outputs) :]}
                saved = [values[s.source][s.place] for s in halves.saved]
                tangents = [_random_like(signature.inputs[i]) for i in halves.tangents]
                self._compare("backward", [*saved, *tangents], [signature.outputs[i] for i in halves.gradients])
        raise Compared

    def _compare(self, half: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> tuple[Any, ...]:
        graph, run = self.halves[half]
        ours, theirs, moved = _run_all(run, compile_graph(graph, half), inputs, generators_of(graph))
        found = []
        for output, *values in zip(outputs, ours, theirs, moved, strict=False):
            if isinstance(values[0], torch.Tensor):
                found.append(ResultDifference(half, output.role, output.name, *_distance(*values)))
        self.differences += found
        if self.first_op is None and not all(d.is_explained for d in found):
            self.first_op = self._find_first(graph, half, inputs)
        return theirs

    def _find_first(self, graph: fx.GraphModule, half: str, inputs: Sequence[Any]) -> str:
        """Compile the half once more with every value as a result, and look for the first that differs."""
        nodes, every = _every_value(graph)
        runs = _run_all(self.backend(every, half), compile_graph(every, half), inputs, generators_of(graph))
        for node, *values in zip(nodes, *runs, strict=True):
            largest, allowed = _distance(*values)
            if largest > allowed:
                origin = node.meta.get("origin")
                line = f" at {origin.file}:{origin.line}" if origin is not None and origin.file else ""
                return f"{node.name} = {node.target} ({half}), off by {largest:.1e}{line}"
        return f"none by itself: {half} differs only where ops are fused"


def generators_of(graph: fx.GraphModule) -> list[torch.Generator]:
    """The generators that a graph may draw from."""
    return [torch.default_generator, *(n.meta["generator"] for n in graph.graph.nodes if "generator" in n.meta)]


@contextmanager
def _where_they_were(generators: list[torch.Generator]) -> Iterator[None]:
    """Put generators back afterwards."""
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def _run_all(
    run: Runner, reference: Runner, inputs: Sequence[Any], generators: list[torch.Generator]
) -> list[tuple[Any, ...]]:
    """The results of both, and of the reference on inputs that are off by rounding, with the same random numbers."""
    results = []
    with exclude_keys(BELOW_AUTOGRAD), torch.no_grad():
        moved = [_moved(value) for value in inputs]
        for function, given in ((run, inputs), (reference, inputs), (reference, moved)):
            with _where_they_were(generators):
                results.append(tuple(function(*given)))
    return results


def _moved(value: Any) -> Any:
    """A tensor with each element off by one unit in its last place."""
    if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
        return value
    signs = torch.randint(0, 2, value.shape, device=value.device).mul_(2).sub_(1)
    return torch.empty_like(value).copy_(value * (1 + signs * torch.finfo(value.dtype).eps))


def _every_value(graph: fx.GraphModule) -> tuple[list[fx.Node], fx.GraphModule]:
    copied = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in graph.graph.nodes:
        if node.op != "output":
            copies[node] = copied.node_copy(node, copies.__getitem__)
    nodes = [n for n in copies if n.op == "call_function" and n.meta.get("spec") is not None]
    copied.output(tuple(copies[n] for n in nodes))
    constants = {str(n.target): getattr(graph, str(n.target)) for n in copies if n.op == "get_attr"}
    return nodes, lazy_graph_module(constants, copied, "EveryValue")


def _distance(our: torch.Tensor, their: torch.Tensor, moved: torch.Tensor) -> tuple[float, float]:
    """The largest difference, and how much of it rounding explains."""
    same_kind = our.shape == their.shape and our.dtype == their.dtype
    if not same_kind or not torch.equal(our.isnan(), their.isnan()):
        return float("inf"), 0.0
    if not (their.is_floating_point() or their.is_complex()):
        return _largest(our, their), 0.0
    scale = _largest(their, torch.zeros_like(their))
    return _largest(our, their), _UNITS * (torch.finfo(their.dtype).eps * scale + _largest(moved, their))


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest finite element of a difference."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    gap = (a.to(wide) - b.to(wide)).abs()
    gap = gap[gap.isfinite()]
    return float(gap.max()) if gap.numel() else 0.0


def _random_like(tangent: Any) -> torch.Tensor:
    spec = tangent.spec
    made = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    return made.copy_(torch.randn(spec.shape, dtype=spec.dtype if spec.dtype.is_floating_point else torch.float32))
