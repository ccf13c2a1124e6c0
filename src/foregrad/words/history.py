"""History: what autograd tells of a tensor; of some it refuses to tell."""

from __future__ import annotations

from typing import Any

import torch


def history_of(ghost: torch.Tensor) -> Any:
    """The grad_fn; None where autograd refuses to tell, as for a view of several whose base was written."""
    try:
        return ghost.grad_fn
    except RuntimeError:
        return None


def is_leaf(ghost: torch.Tensor) -> bool:
    """Whether a tensor has no history; no where autograd refuses to tell: a view of several, or one made under no_grad,
    whose base was written."""
    try:
        return ghost.is_leaf
    except RuntimeError:
        return False


def is_flagged(ghost: torch.Tensor) -> bool:
    """Whether a tensor was told to require a gradient, rather than made from one that does."""
    return ghost.requires_grad and is_leaf(ghost) and not (ghost._base is not None and ghost._base.requires_grad)
