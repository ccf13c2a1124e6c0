"""Attach a history: a tensor that exists already gets the autograd history of another one."""

from __future__ import annotations

from typing import Any

import torch


class Attached(torch.autograd.Function):
    """`Attached.apply(value, [tensor])` is the tensor, whose gradient from then on goes to the value."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, holder: list[torch.Tensor]) -> torch.Tensor:
        return holder[0]

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return gradient, None
