"""History: what autograd tells of a tensor; of some it refuses to tell. And what Python has attached to it."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.substrate import set_version


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


def shares_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one version counter: a tensor and its `detach()` do, a tensor and its `.data` do not."""
    if one.is_inference() or other.is_inference() or one._version != other._version:
        return False
    before = one._version
    set_version(one, before + 1)
    is_shared = other._version != before
    set_version(one, before)
    return is_shared


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Attributes that a plain tensor was given in Python."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return {key: value for key, value in vars(tensor).items() if key[:1] != "_"} if is_plain else {}
