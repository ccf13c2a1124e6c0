"""The public entry: compile a function or a module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from foregrad.compile import Compiled, Pass
from foregrad.modules import compile_module


def compile(  # noqa: A001  the public name is fg.compile
    target: Any, *, backend: str = "eager", passes: Sequence[Pass] = ()
) -> Any:
    """The same function or module, running captured programs in place of its code.

    It behaves as the target does: results, gradients of any order, mutation, aliasing, exceptions. A module keeps its
    state_dict keys, attributes, `train()` and `eval()`, and shares them with the module that was given. A call unlike
    those before it is captured anew.
    """
    if backend != "eager":
        raise ValueError(f'there is no backend {backend!r} yet; use backend="eager"')
    if isinstance(target, torch.nn.Module):
        return compile_module(target, tuple(passes))
    if not callable(target):
        raise TypeError(f"fg.compile takes a function or a module, not a {type(target).__name__}")
    return Compiled(target, tuple(passes))
