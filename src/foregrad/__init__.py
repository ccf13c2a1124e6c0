"""foregrad: ahead-of-time autograd for PyTorch."""

import sys as _sys
from importlib import import_module as _import_module
from types import ModuleType as _ModuleType
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
    from foregrad.api import compile
    from foregrad.cache.serialize.artifact import load
    from foregrad.cache.store.cache import Cache
    from foregrad.capture import capture
    from foregrad.explain import explain
    from foregrad.program.program import Program
    from foregrad.step import step

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
    "explain",
    "load",
    "step",
]

#: Where each name is, and imported from when it is first used: a program that is loaded needs little of foregrad.
_HOMES = {
    "Cache": "cache.store.cache",
    "Program": "program.program",
    "capture": "capture",
    "compile": "api",
    "explain": "explain",
    "load": "cache.serialize.artifact",
    "step": "step",
}


class _Package(_ModuleType):
    """This package. Some of its names are also names of modules in it, which must not take their places."""

    def __getattr__(self, name: str) -> _Any:
        if name == "graph":
            return _import_module("foregrad.graph")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _start() -> None:
    """Let training start sooner, where torch is used: the command line looks at files and caches without it."""
    if "torch" in _sys.modules:
        _import_module("foregrad.torch_private.startup").spare_the_compiler()


def _public(name: str, home: str) -> property:
    """A name that is looked up when it is used. What is put in its place is, unless it is the module of that name."""
    own = f"_own_{name}"

    def find(package: _ModuleType) -> _Any:
        with _no_garbage_collection():
            found = vars(package)[own] if own in vars(package) else getattr(_import_module(f"foregrad.{home}"), name)
        _start()
        return found

    def put(package: _ModuleType, value: _Any) -> None:
        if not isinstance(value, _ModuleType):
            vars(package)[own] = value

    return property(find, put)


_start()
for _name, _home in _HOMES.items():
    setattr(_Package, _name, _public(_name, _home))
_sys.modules[__name__].__class__ = _Package
