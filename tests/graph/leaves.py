"""What the tests of the graph share."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch


def leaf(*size: int) -> torch.Tensor:
    """1, 2, 3, ... with a gradient."""
    count = int(torch.tensor(size).prod()) if size else 1
    return torch.arange(1.0, count + 1).reshape(size).requires_grad_()


def is_freed(make: Callable[[], Any]) -> bool:
    """Whether the object that `make` returns goes away once nobody else has it."""
    reference = weakref.ref(make())
    gc.collect()
    return reference() is None
