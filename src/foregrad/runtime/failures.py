"""Failures: errors of a call that came before any of its effects, so that the function itself can run in its place."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.core.errors import ForegradError

#: What a call says when something of the caller's may have changed.
BEGUN = "begun = True"


def random_state() -> torch.Tensor:
    """Where the default generator is, kept by a call that draws, as `random`."""
    return torch.default_generator.get_state()


def failed_before_effects(error: Exception) -> bool:
    """Whether an error of a kernel has left a call when none of its effects had happened; generators are as they were
    then. The function may catch such an error, or have written to its arguments before."""
    if isinstance(error, ForegradError):
        return False
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_name == "call" and code.co_filename.startswith("<foregrad "):
            return _is_undone(step.tb_frame.f_locals)
        step = step.tb_next
    return False


def _is_undone(call: dict[str, Any]) -> bool:
    if "begun" in call:
        return False
    if "random" in call:
        torch.default_generator.set_state(call["random"])
    for generator, state in call.get("states", ()):  # of a call that has drawn before an answer
        generator.set_state(state)
    return True
