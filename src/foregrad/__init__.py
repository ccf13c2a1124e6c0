"""foregrad: ahead-of-time autograd for PyTorch."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from foregrad.api import compile
from foregrad.capture import capture
from foregrad.errors import (
    BackwardError,
    CaptureError,
    CorruptArtifact,
    ForegradError,
    GuardError,
    ProgramError,
    StaleArtifact,
    UntrustedArtifact,
)
from foregrad.explain import explain
from foregrad.program.program import Program
from foregrad.step import step

if _TYPE_CHECKING:
    from foregrad import graph as graph

__all__ = [
    "BackwardError",
    "CaptureError",
    "CorruptArtifact",
    "ForegradError",
    "GuardError",
    "Program",
    "ProgramError",
    "StaleArtifact",
    "UntrustedArtifact",
    "capture",
    "compile",
    "explain",
    "step",
]


def __getattr__(name: str) -> _Any:
    """`fg.graph` is imported when it is first used."""
    if name == "graph":
        return _import_module("foregrad.graph")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
