"""A backward as a forward of its own, so that its results can be differentiated again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from foregrad.core.spec import restrided
from foregrad.core.wrapper_autograd import whole
from foregrad.runtime.backward import Unpacked, each_example, runner_for
from foregrad.runtime.size_formulas import Dims
from foregrad.torch_private.autograd_engine import apply_of
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, exclude_keys

if TYPE_CHECKING:
    from foregrad.runtime.compiled_stage import CompiledStage


class Later(torch.autograd.Function):
    """Runs a backward as a forward of its own, so that its results can be differentiated again.

    `edges` are tensors that stand for the stage's slots: only their places in the autograd graph matter.
    """

    @staticmethod
    def forward(
        ctx: Any, compiled: CompiledStage, kept: dict[Any, Any], around: Any, tangents: Any, *edges: Any
    ) -> Any:
        halves, stage = compiled.halves, compiled.stage
        assert stage.earlier is not None
        live, dims = around
        strides, numbers = compiled.at(dims)
        with exclude_keys(BELOW_AUTOGRAD):
            arrived = iter([restrided(t, stride) for t, stride in zip(tangents, strides, strict=True)])
            given = [next(arrived) if number is None else number for number in numbers]
            run = runner_for(compiled.run_forward, given)
            results = run(*given, *(kept[s.key] for s in halves.kept))
        num = len(halves.outputs)
        outputs = tuple(None if r is None else r.detach() for r in results[:num])
        sources = {
            "input": given,
            "kept": [kept[s.key] for s in halves.kept],
            "output": [None if r is None else r.detach() for r in outputs],
            "value": results[num:],
        }
        ctx.set_materialize_grads(False)
        ctx.compiled, ctx.live, ctx.dims, ctx.num_edges = compiled, live, dims, len(edges)
        ctx.save_for_backward(*[sources[s.source][s.place] for s in halves.saved], *edges)
        gradients = stage.earlier.gradients
        ctx.mark_non_differentiable(
            *[
                o
                for o, g in zip(outputs, gradients, strict=True)
                if o is not None and g is not None and not g.requires_grad
            ]
        )
        ctx.places = [i for i, g in enumerate(gradients) if g is not None and g.requires_grad]
        return outputs

    @staticmethod
    def backward(ctx: Any, *arrived: Any) -> Any:
        tangents = [arrived[place] for place in ctx.places]
        if torch.is_grad_enabled():
            saved = Unpacked(ctx)
            edges = saved.outputs(len(ctx.compiled.halves.saved)) if ctx.num_edges else ()
            gradients = differentiable_backward(ctx.compiled, saved, tangents, ctx.live, ctx.dims, edges)
        else:
            gradients = ctx.compiled.run_backward(Unpacked(ctx), tangents, ctx.live, ctx.dims)
        return (None, None, None, None, *gradients)


def differentiable_backward(
    compiled: CompiledStage, saved: Unpacked, tangents: Sequence[Any], live: Any, dims: Dims, edges: Sequence[Any]
) -> Sequence[Any]:
    """The gradients of a stage, as tensors that can be differentiated again."""
    places = [place for place, tangent in enumerate(tangents) if tangent is not None]

    def run(*defined: Any) -> tuple[Any, ...]:
        given = dict(zip(places, defined, strict=True))
        following = compiled.next_stage([given.get(place) for place in range(len(tangents))], dims)
        needed = {s.key for s in following.halves.kept}
        for i in compiled.checks_of(following.program):
            saved[i]
        kept = {s.key: saved[i] for i, s in enumerate(compiled.halves.saved) if s.key in needed}
        slots = [*edges, *(t for t in defined if t.requires_grad)]
        assert following.stage.earlier is not None
        found = apply_of(Later)(following, kept, (live, dims), defined, *slots)
        return tuple(whole(found, following.stage.earlier.wholes))

    return each_example(run, [tangents[place] for place in places])
