"""Sets: `Tensor.set_`, by which a tensor takes the storage of another; autograd has no formula for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.ops import Alias

SETS = {getattr(torch.ops.aten.set_, overload) for overload in torch.ops.aten.set_.overloads()}


def check_history(given: Sequence[torch.Tensor], where: Callable[[], str]) -> None:
    """Refuse `set_` with gradients on: the tensor would have a history without a formula."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
        raise CaptureError(
            f"`set_` with a tensor that needs a gradient; autograd has no formula for it.\n{where()}\n"
            "Do it inside torch.no_grad()."
        )


def check_shape(before: Alias, target: torch.Tensor, where: Callable[[], str]) -> None:
    """Refuse another shape for a tensor with a history: eager's backward reads beside the gradient that arrives."""
    if target.requires_grad and tuple(target.size()) != tuple(before.size):
        raise CaptureError(
            f"`set_` gives a tensor {before.spec} that needs a gradient another shape.\n{where()}\n"
            "Give it memory of its own shape."
        )
