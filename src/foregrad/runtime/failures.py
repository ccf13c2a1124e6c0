"""Failures: errors of a call that came before any of its effects, so that the function itself can run in its place."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.core.errors import ForegradError

#: What a call says when something of the caller's may have changed, and when its ops have run, or autograd is asked to
#: run them: an error that comes then is none of a kernel, but of a hook or of a function that `fg.python` made.
BEGUN = "begun = True"
APPLIES = "applies = True"


def random_state() -> torch.Tensor:
    """Where the default generator is, kept by a call that draws, as `random`."""
    return torch.default_generator.get_state()


def failed_before_effects(error: Exception) -> bool:
    """Whether an error of a kernel has left a call when none of its effects had happened; generators are as they were
    then. The function may catch such an error, or have written to its arguments before."""
    if isinstance(error, ForegradError):
        return False
    found: dict[str, dict[str, Any]] = {}  # variables of the generated call, and of the forward that it applies
    step = error.__traceback__
    while step is not None and "forward" not in found:
        code = step.tb_frame.f_code
        if code.co_name in ("call", "forward") and code.co_filename.startswith("<foregrad "):
            found.setdefault(code.co_name, step.tb_frame.f_locals)
        step = step.tb_next
    call = found.get("call", {})
    is_of_kernel = "begun" not in call and "begun" not in found.get("forward", {})
    is_of_hook = "applies" in call and "forward" not in found
    return "call" in found and is_of_kernel and not is_of_hook and _is_undone(call)


def _is_undone(call: dict[str, Any]) -> bool:
    if "random" in call:
        torch.default_generator.set_state(call["random"])
    for generator, state in call.get("states", ()):  # of a call that has drawn before an answer
        generator.set_state(state)
    return True
