"""Tensor properties: `is_leaf`, `requires_grad` and others, by name."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes

_PLAIN = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout)


def answer_of(tensor: torch.Tensor, name: str) -> Any:
    """What a tensor says if it is asked."""
    with no_dispatch_modes(), no_function_modes():
        found = getattr(tensor, name)
        return found() if callable(getattr(torch.Tensor, name)) else found


def same_answer(one: Any, other: Any) -> bool:
    """Whether two answers are plain values, and the same."""
    return type(one) is type(other) and isinstance(one, _PLAIN) and one == other


def answers_otherwise(tensor: torch.Tensor, answers: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a tensor says something else than it did."""
    return not all(same_answer(value, answer_of(tensor, name)) for name, value in answers)
