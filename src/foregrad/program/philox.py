"""Philox: how far draws move the generator of a GPU, whose state is a seed and an offset.

A kernel that fills a tensor gives every thread a stream of its own; each thread takes four numbers at a time, and the
offset moves by as many as the busiest thread takes. So the count depends on the GPU. It was compared with torch's own
arithmetic, and with no GPU: nothing that runs relies on it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from foregrad.core.spec import Spec
from foregrad.program.dead_code import op_of
from foregrad.program.effect_chains import PHILOX, chains_of

aten = torch.ops.aten

_BLOCK = 256  # threads
_AT_ONCE = 4  # numbers of 32 bits that a thread draws

#: Ops that fill one tensor, element by element.
_FILL = {
    aten.rand.default,
    aten.rand_like.default,
    aten.randn.default,
    aten.randn_like.default,
    aten.uniform.default,
    aten.normal_functional.default,
    aten.bernoulli.p,
    aten.native_dropout.default,
}


@dataclass(frozen=True)
class Gpu:
    """What of a GPU decides how a tensor is filled."""

    multiprocessors: int
    threads_per_multiprocessor: int

    def offset_of(self, spec: Spec) -> int:
        """How far the offset moves when a tensor is filled."""
        numel = spec.num_elements
        if not numel:
            return 0
        blocks = min(-(-numel // _BLOCK), self.multiprocessors * (self.threads_per_multiprocessor // _BLOCK))
        elements = _AT_ONCE * 4 // max(spec.dtype.itemsize, 4)  # two doubles take the place of four floats
        return ((numel - 1) // (_BLOCK * blocks * elements) + 1) * _AT_ONCE


def offsets(graph: fx.Graph, gpu: Gpu) -> dict[str, int | None]:
    """For each random op on a GPU, how far it moves the offset; None where that is not known."""
    found: dict[str, int | None] = {}
    for node in graph.nodes:
        chains = [c for c in chains_of(node) if c.kind == "rng" and str(c.of).partition(":")[0] in PHILOX]
        if chains:
            specs = [n.meta["spec"] for n in (node, *node.users) if n.meta.get("spec") is not None]
            found[node.name] = gpu.offset_of(specs[0]) if op_of(node) in _FILL and specs else None
    return found
