"""Partial backwards: from some of the outputs only, along tangents of unusual layouts, or to be differentiated again.

The generated backward calls these where it is not the usual one that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from foregrad.core.errors import BackwardError
from foregrad.runtime.backward import CompiledBackward, Unpacked, plain, run_compiled
from foregrad.runtime.dead_ends import arrived
from foregrad.runtime.size_formulas import Dims
from foregrad.runtime.tangents import Tangents

if TYPE_CHECKING:
    from foregrad.record.recording import Layouts
    from foregrad.runtime.compiled_stage import CompiledStage


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
        from foregrad.runtime.differentiable_backward import differentiable_backward

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
    """A stage that was kept in a file: backwards that were asked for are there, any other one needs the recording."""

    name: str
    backwards: tuple[tuple[Layouts, CompiledBackward], ...]
    tangents: Tangents
    record: Callable[[], CompiledStage] | None = None  # where the function is at hand

    @cached_property
    def _found(self) -> dict[Layouts, CompiledBackward]:
        return dict(self.backwards)

    def whole(self) -> CompiledStage:
        """The stage with its recording."""
        if self.record is None:
            raise BackwardError(
                f"{self.name} was loaded from a file, which holds the backwards that had been asked for when it was "
                "saved, and nothing to record others from: not from other results, and none that is itself "
                "differentiated.\nRun this backward before you save, compile the function itself, or save a function "
                "that does this inside."
            )
        stage = self.record()
        stage.adopt(self.backwards)
        return stage

    @property
    def kept_backwards(self) -> tuple[tuple[Layouts, CompiledBackward], ...]:
        """The backwards of the file, and those that were recorded since."""
        made: CompiledStage | None = getattr(self.record, "made", None)
        return self.backwards if made is None else tuple(dict((*self.backwards, *made.kept_backwards)).items())

    def backward(self, layouts: Layouts) -> CompiledBackward:
        """The backward for tangents of these layouts."""
        found = self._found.get(layouts)
        return self.whole().backward(layouts) if found is None else found

    def run_backward(self, saved: Any, tangents: Sequence[Any], live: Sequence[Any], dims: Dims) -> list[Any]:
        """Gradients for the slots of the stage, from the tangents that are defined."""
        found = self._found.get(self.tangents.layouts(tangents))
        if found is None and self.record is None:
            found = next((one for layouts, one in self.backwards if _are_present(layouts, tangents)), None)
        if found is None:
            return self.whole().run_backward(saved, tangents, live, dims)
        return run_compiled(found, saved, tangents, live, dims)


def _are_present(layouts: Layouts, tangents: Sequence[Any]) -> bool:
    """Whether a backward is for these tangents, whatever their layouts."""
    return [stride is None for stride in layouts] == [tangent is None for tangent in tangents]
