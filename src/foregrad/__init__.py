"""foregrad: ahead-of-time autograd for PyTorch."""

from foregrad.api import compile
from foregrad.capture import capture
from foregrad.errors import BackwardError, CaptureError, ForegradError, GuardError, ProgramError
from foregrad.explain import explain
from foregrad.program.program import Program
from foregrad.step import step

__all__ = [
    "BackwardError",
    "CaptureError",
    "ForegradError",
    "GuardError",
    "Program",
    "ProgramError",
    "capture",
    "compile",
    "explain",
    "step",
]
