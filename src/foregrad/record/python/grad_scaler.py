"""Scaler: the optimizer step that a GradScaler leaves out if a gradient is not finite.

Whether it does depends on data, so a program does both: it takes the step, and then every tensor that the step can
have changed keeps its old contents where the gradients were not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from foregrad.core.errors import CaptureError, CreatesState
from foregrad.core.spec import is_number
from foregrad.record.session import SCALED
from foregrad.record.symbols.numbers import expression_of


@contextmanager
def scaled_steps(state: tuple[Any, ...]) -> Iterator[None]:
    """Let GradScalers take steps so, if the state has one."""
    has_scaler = any(isinstance(one, torch.amp.GradScaler) for one in state)
    with SCALED.by(_step) if has_scaler else nullcontext():
        yield


def _step(
    original: Any, scaler: Any, optimizer: Any, optimizer_state: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    found = list(optimizer_state["found_inf_per_device"].values())
    tensors = [p for group in optimizer.param_groups for p in group["params"]] + list(_tensors(optimizer.state))
    keys = {p: list(state) for p, state in optimizer.state.items()}
    numbers = list(_numbers(optimizer.state))
    with torch.no_grad():
        before = [t.clone() for t in tensors]
    result = optimizer.step(*args, **kwargs)
    if {p: list(state) for p, state in optimizer.state.items()} != keys:
        raise CreatesState("a step of a GradScaler creates state.")
    if [n for n, m in zip(numbers, _numbers(optimizer.state), strict=True) if n is not m]:
        raise CaptureError(
            f"{type(optimizer).__name__} counts in Python, and a GradScaler may leave its step out.\nKeep the count in "
            "a tensor, or call the optimizer outside."
        )
    with torch.no_grad():
        is_left_out = torch.stack(found).sum() != 0
        for tensor, old in zip(tensors, before, strict=True):
            tensor.copy_(torch.where(is_left_out, old, tensor))
    return result


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, torch.Tensor):
            yield item
        elif isinstance(item, (dict, list, tuple)):
            yield from _tensors(item)


def _numbers(value: Any) -> Iterator[Any]:
    for item in value.values() if isinstance(value, dict) else value:
        if is_number(item) or expression_of(item) is not None:
            yield item
        elif isinstance(item, (dict, list, tuple)):
            yield from _numbers(item)
