"""Dead ends: parts of the autograd graph that lead to no input, which only `backward()` runs.

A view made under `no_grad` is such a part: it says that it requires a gradient, and gets none. All that eager does
there is to refuse if a tensor was written that the part has saved, and so do we: the program's node has one more edge,
to a node that looks.
"""

from __future__ import annotations

from typing import Any

import torch

from foregrad.torch_private.autograd import version_of

_LEAF = torch.zeros((), requires_grad=True)

#: For each source of a backward, the error that capture has met behind it.
Errors = tuple[Exception | None, ...]

#: Tensors that must not be written: the place of the source, the tensor, and its version.
Watched = list[tuple[int, torch.Tensor, int]]


class DeadEnds(torch.autograd.Function):
    """The node at the end; the gradient that arrives says from which sources the backward came."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor, errors: Errors, watched: Watched) -> torch.Tensor:
        ctx.errors, ctx.watched = errors, watched
        ctx.set_materialize_grads(False)
        return leaf.new_zeros(len(errors))

    @staticmethod
    def backward(ctx: Any, arrived: torch.Tensor | None) -> Any:
        came = [] if arrived is None else arrived.tolist()
        for error, is_source in zip(ctx.errors, came, strict=False):
            if is_source and error is not None:
                raise error.with_traceback(None)
        for place, tensor, version in ctx.watched:
            if came and came[place] and version_of(tensor) != version:
                raise RuntimeError(
                    f"a tensor that autograd saved was modified by an inplace operation: {list(tensor.shape)} is at "
                    f"version {version_of(tensor)}; expected version {version} instead."
                )
        return None, None, None


def dead_ends(errors: Errors, watched: Watched) -> torch.Tensor:
    """A tensor that ends in dead ends."""
    return DeadEnds.apply(_LEAF, errors, watched)  # type: ignore[no-untyped-call]


def arrived(tangents: Any) -> torch.Tensor:
    """The gradient for that tensor: which tangents are there."""
    return torch.tensor([float(t is not None) for t in tangents])
