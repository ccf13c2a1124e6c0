"""foregrad: ahead-of-time autograd for PyTorch."""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

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
from foregrad.substrate_start import spare_the_compiler as _spare_the_compiler

if _TYPE_CHECKING:
    from foregrad import graph as graph
    from foregrad.api import compile
    from foregrad.capture import capture
    from foregrad.explain import explain
    from foregrad.keep.artifact import load
    from foregrad.program.program import Program
    from foregrad.step import step
    from foregrad.store.cache import Cache

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

#: Where each name is, and imported from when it is first used: a program that is loaded needs little of foregrad.
_HOMES = {
    "Cache": "store.cache",
    "Program": "program.program",
    "capture": "capture",
    "compile": "api",
    "explain": "explain",
    "load": "keep.artifact",
    "step": "step",
}


class _Package(_ModuleType):
    """This package. Some of its names are also names of modules in it, which must not take their places."""

    def __getattr__(self, name: str) -> _Any:
        if name == "graph":
            return _import_module("foregrad.graph")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _public(name: str, home: str) -> property:
    return property(lambda _: getattr(_import_module(f"foregrad.{home}"), name), lambda _, module: None)


_spare_the_compiler()
for _name, _home in _HOMES.items():
    setattr(_Package, _name, _public(_name, _home))
_sys.modules[__name__].__class__ = _Package
