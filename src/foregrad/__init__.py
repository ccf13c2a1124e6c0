"""foregrad: ahead-of-time autograd for PyTorch."""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from foregrad.core.errors import (
    BackwardError,
    CannotKeep,
    CaptureError,
    CorruptArtifact,
    FallbackWarning,
    ForegradError,
    GuardError,
    ProgramError,
    StaleArtifact,
    UntrustedArtifact,
)
from foregrad.process.garbage_collection import no_garbage_collection as _no_garbage_collection

if _TYPE_CHECKING:
    from foregrad import graph as graph
    from foregrad.api.capture import capture
    from foregrad.api.compile import compile
    from foregrad.api.configure import configure
    from foregrad.api.explain import explain
    from foregrad.api.python import python
    from foregrad.api.step import step
    from foregrad.cache.serialize.artifact import load
    from foregrad.cache.store.cache import Cache
    from foregrad.program.program import Program

__all__ = [
    "BackwardError",
    "Cache",
    "CannotKeep",
    "CaptureError",
    "CorruptArtifact",
    "FallbackWarning",
    "ForegradError",
    "GuardError",
    "Program",
    "ProgramError",
    "StaleArtifact",
    "UntrustedArtifact",
    "capture",
    "compile",
    "configure",
    "explain",
    "load",
    "python",
    "step",
]

#: Where each name is, and imported from when it is used: a program that is loaded needs little of foregrad.
_HOMES = {
    "Cache": "cache.store.cache",
    "Program": "program.program",
    "capture": "api.capture",
    "compile": "api.compile",
    "configure": "api.configure",
    "explain": "api.explain",
    "load": "cache.serialize.artifact",
    "python": "api.python",
    "step": "api.step",
}

for _error in (name for name in __all__ if name not in _HOMES):
    globals()[_error].__module__ = __name__  # a traceback ends with `foregrad.CaptureError: ...`


def __getattr__(name: str) -> _Any:
    if name == "graph":
        return _import_module("foregrad.graph")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _no_garbage_collection():
        return getattr(_import_module(f"foregrad.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "graph"]
