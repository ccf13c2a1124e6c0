"""Optimizers that step inside the function are declared, or made there: numbers of others would stay what they are."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from foregrad.core.errors import CaptureError
from foregrad.process.garbage_collection import all_grown_up, is_young
from foregrad.record.origins import where


@contextmanager
def only_declared(state: tuple[Any, ...]) -> Iterator[None]:
    """Refuse steps of optimizers that are neither state nor made inside; garbage collection is off meanwhile."""
    here = threading.get_ident()

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if threading.get_ident() == here and not any(one is optimizer for one in state) and not is_young(optimizer):
            raise CaptureError(
                f"a step of {type(optimizer).__name__} inside the function, which is not declared: its learning rate "
                f"would stay what it is now.\n{where('')}\nDeclare the optimizer: fg.step(model, optimizer)."
            )

    all_grown_up()
    handle = register_optimizer_step_pre_hook(before)
    try:
        yield
    finally:
        handle.remove()
