"""Tensor hooks: what the engine calls when a gradient passes a tensor."""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch

from foregrad.torch_private.autograd import accumulation_hooks, gradient_hooks

#: Stands between the hooks before the engine adds to a .grad and those after.
THEN: Any = None


def hooks_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Whom the engine calls before and after it adds to the .grad of a tensor."""
    if not gradient_hooks(tensor) and not accumulation_hooks(tensor):
        return ()
    before, after = (gradient_hooks(tensor) or {}), (accumulation_hooks(tensor) or {})
    return (*before.values(), THEN, *after.values())


def has_other_hooks(tensor: torch.Tensor, hooks: tuple[Any, ...]) -> bool:
    """Whether the hooks of a tensor are not these."""
    now = hooks_of(tensor)
    return len(now) != len(hooks) or not all(map(_is_same, now, hooks))


def _is_same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is MethodType and type(other) is MethodType and one == other)
