"""Rare backwards: from some of the outputs only, along tangents of unusual layouts, or to be differentiated again.

The generated backward calls these where it is not the usual one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from foregrad.errors import BackwardError
from foregrad.runtime.backward import CompiledBackward, Unpacked, plain, run_compiled
from foregrad.runtime.dead_ends import arrived
from foregrad.runtime.formulas import Dims

if TYPE_CHECKING:
    from foregrad.runtime.halves import CompiledStage


@dataclass(frozen=True, eq=False)
class RareBackward:
    """A backward as the autograd function wants it: a gradient for each of the function's arguments."""

    stage: CompiledStage | KeptStage
    order: tuple[int, ...]  # of the function's tensors among the gradients of the stage
    carried: tuple[int, ...]  # tensors that have a carrier
    num_saved: int  # tensors that the function saves before the carriers
    num_leading: int  # arguments that are no tensors
    has_live: bool
    has_end: bool
    has_dims: bool = False  # sizes vary

    def __call__(self, ctx: Any, tangents: Sequence[Any], carriers: Sequence[Any]) -> Any:
        live, dims = ctx.live if self.has_live else (), ctx.dims if self.has_dims else ()
        tangents = [plain(t) for t in tangents]
        order, gradients = self.order, [None] * len(self.order)
        if any(t is not None for t in tangents) and order:
            found: Sequence[Any]
            if torch.is_grad_enabled():
                found = self._differentiable(ctx, tangents, live, dims)
            else:
                found = self.stage.run_backward(Unpacked(ctx), tangents, live, dims)
            gradients = [found[i] for i in order]
        for place, carried_back in zip(self.carried, carriers, strict=True):
            if carried_back is not None:
                known: Any = gradients[place]
                gradients[place] = carried_back if known is None else known + carried_back
        return (*[None] * self.num_leading, *gradients, *([arrived(tangents)] if self.has_end else []))

    def _differentiable(self, ctx: Any, tangents: Sequence[Any], live: Any, dims: Dims) -> Sequence[Any]:
        from foregrad.runtime.halves import differentiable_backward

        saved = Unpacked(ctx)
        edges: list[Any] = [getattr(node, "variable", None) for node, _ in ctx.next_functions]
        for place, carrier in zip(self.carried, saved.outputs(self.num_saved) if self.carried else (), strict=True):
            edges[place] = carrier
        by_slot = {slot: edges[i] for i, slot in enumerate(self.order)}
        wanted = [by_slot[i] for i in range(len(self.order))]
        stage = self.stage.whole() if isinstance(self.stage, KeptStage) else self.stage
        return differentiable_backward(stage, saved, tangents, live, dims, wanted)


@dataclass(frozen=True, eq=False)
class KeptStage:
    """A stage that was kept in a file: the usual backward is there, any other one needs the recording."""

    name: str
    usual: CompiledBackward | None
    record: Callable[[], CompiledStage] | None = None  # where the function is at hand

    def whole(self) -> CompiledStage:
        """The stage with its recording."""
        if self.record is None:
            raise BackwardError(
                f"{self.name} was loaded from a file, which holds its backward from all outputs and nothing to record "
                "others from: not from some of them only, and none that is itself differentiated.\n"
                "Compile the function itself, or save a function that does this inside."
            )
        return self.record()

    def run_backward(self, saved: Any, tangents: Sequence[Any], live: Sequence[Any], dims: Dims) -> list[Any]:
        """Gradients for the slots of the stage, from the tangents that are defined."""
        is_usual = self.usual is not None and self.usual.error is None and all(t is not None for t in tangents)
        if self.record is not None or not is_usual:
            return self.whole().run_backward(saved, tangents, live, dims)
        assert self.usual is not None
        return run_compiled(self.usual, saved, tangents, live, dims)
