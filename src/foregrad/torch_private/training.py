"""Optimizers and GradScalers: where they do their work, and what they tell schedulers."""

from __future__ import annotations

import torch

__all__ = [
    "SCALED_STEP",
    "tell_it_steps",
]


#: Where a GradScaler steps an optimizer or does not.
SCALED_STEP = (torch.amp.GradScaler, "_maybe_opt_step")


def tell_it_steps(optimizer: torch.optim.Optimizer) -> None:
    """Let schedulers know that an optimizer makes its steps, though nobody calls them: they warn if it makes none."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True  # type: ignore[attr-defined]
