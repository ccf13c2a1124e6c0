"""Kinds of objects that generated functions call and that can be kept, with the parts that each is made of.

A class is imported when an object of it is made: a file that needs few of them is loaded sooner.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from foregrad.cache.serialize.known_names import find

#: Where the class of a kind is, and the attributes that are the arguments it is made with.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Ask": ("runtime.questions", ("piece", "wanted")),
    "Asked": ("runtime.tangents", ("stage", "layouts")),
    "AutogradFunction": ("runtime.autograd_function", ("name", "forward", "backward")),
    "Check": ("core.generated", ("condition", "words", "was", "looked_at", "about", "indent")),
    "CompiledBackward": (
        "runtime.backward",
        ("run", "saved", "num_gradients", "strides", "checks", "writes", "error", "live", "at"),
    ),
    "Convolutions": ("backends.kernels.convolutions", ("run",)),
    "Fitting": ("backends.guarded_code", ("run", "specs", "looks")),
    "FromList": ("backends.backend", ("run",)),
    "Guarded": ("backends.guarded_code", ("run", "graph", "name", "layouts", "cuts", "looks")),
    "InGradMode": ("backends.eager", ("func", "enabled")),
    "Numbered": ("backends.numbers_as_tensors", ("run", "places")),
    "Numbers": ("backends.numbers_as_tensors", ("given",)),
    "NumberSpec": ("core.spec", ("shape", "stride", "dtype", "device", "requires_grad")),
    "Overlap": ("runtime.guards.overlap", ("pattern", "sizes", "has_data")),
    "Pure": ("functionalize.pure_variants", ("op",)),
    "PythonReads": ("runtime.guards.reach", ("target", "state", "modules", "reads", "lost", "module_checks")),
    "RareBackward": (
        "runtime.partial_backward",
        ("stage", "order", "carried", "num_saved", "num_leading", "has_live", "has_end", "has_dims"),
    ),
    "Reads": (
        "record.python.executed_code",
        ("names", "globals", "tables", "executed", "computed", "computed_in_libraries", "tested", "looks_around"),
    ),
    "Redraw": ("functionalize.redraw", ("op",)),
    "SamePattern": ("runtime.guards.overlap", ("pattern",)),
    "SameState": ("runtime.guards.torch_guards", ("state",)),
    "SameTensors": ("runtime.guards.torch_guards", ("specs", "kinds", "free", "names")),
    "Series": ("backends.kernels.call_sequence", ("run", "addresses", "table")),
    "Tangents": ("runtime.tangents", ("usual", "is_compiled")),
    "SharedPiece": ("runtime.questions", ("run", "gives", "look")),
    "SizeSpec": ("core.spec", ("shape", "stride", "dtype", "device", "requires_grad", "size")),
    "Spec": ("core.spec", ("shape", "stride", "dtype", "device", "requires_grad")),
}


def parts_of(value: Any) -> dict[str, Any] | None:
    """The parts that an object is made of; None if it is of no such kind."""
    kind = type(value).__qualname__
    if kind not in _KINDS or type(value) is not class_of(kind):
        return None
    return {part: getattr(value, part) for part in _KINDS[kind][1]}


@cache
def class_of(kind: str) -> Callable[..., Any] | None:
    """What makes an object of a kind; None if there is no such kind."""
    found: Callable[..., Any] | None = find(f"foregrad.{_KINDS[kind][0]}.{kind}") if kind in _KINDS else None
    return found
