"""Failures: errors of a call that came before any of its effects, so that the function itself can run in its place."""

from __future__ import annotations

from foregrad.core.errors import ForegradError

#: What a call says when something of the caller's may have changed.
BEGUN = "begun = True"


def failed_before_effects(error: Exception) -> bool:
    """Whether an error of a kernel has left a call when none of its effects had happened. The function may catch such
    an error, or have written to its arguments before."""
    if isinstance(error, ForegradError):
        return False
    step = error.__traceback__
    while step is not None:
        code = step.tb_frame.f_code
        if code.co_name == "call" and code.co_filename.startswith("<foregrad "):
            return "begun" not in step.tb_frame.f_locals
        step = step.tb_next
    return False
