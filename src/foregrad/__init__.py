"""foregrad: ahead-of-time autograd for PyTorch."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from foregrad.api import compile
from foregrad.capture import capture
from foregrad.errors import (
    BackwardError,
    CannotKeep,
    CaptureError,
    CorruptArtifact,
    ForegradError,
    GuardError,
    ProgramError,
    StaleArtifact,
    UntrustedArtifact,
)
from foregrad.explain import explain
from foregrad.keep.artifact import load
from foregrad.program.program import Program
from foregrad.step import step

if _TYPE_CHECKING:
    from foregrad import graph as graph
    from foregrad.keep.cache import Cache as Cache

__all__ = [
    "BackwardError",
    "Cache",
    "CannotKeep",
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
    "load",
    "step",
]


def __getattr__(name: str) -> _Any:
    """`fg.graph` and `fg.Cache` are imported when they are first used."""
    if name == "graph":
        return _import_module("foregrad.graph")
    if name == "Cache":
        return _import_module("foregrad.keep.cache").Cache
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
