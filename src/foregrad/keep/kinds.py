"""Kinds of objects that generated functions call and that can be kept: how to take each apart, and to make it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from foregrad.backends.eager import InGradMode
from foregrad.backends.guarded import Fitting, Guarded
from foregrad.backends.inductor import FromList
from foregrad.backends.numbers import Numbered, Numbers
from foregrad.functionalize.variants import Pure
from foregrad.runtime.call import AutogradFunction
from foregrad.runtime.halves import CompiledBackward
from foregrad.runtime.overlap import Overlap
from foregrad.runtime.rare import RareBackward
from foregrad.runtime.same import SameState, SameTensors
from foregrad.words.spec import NumberSpec, Spec


@dataclass(frozen=True)
class Kind:
    """A class whose objects are made from named parts, which are its attributes."""

    make: Callable[..., Any]
    parts: tuple[str, ...]


def _dataclass(kind: Any) -> Kind:
    return Kind(kind, tuple(field.name for field in fields(kind)))


_CLASSES = (
    AutogradFunction,
    CompiledBackward,
    Fitting,
    FromList,
    InGradMode,
    Numbered,
    NumberSpec,
    Pure,
    RareBackward,
    SameState,
    SameTensors,
    Spec,
)

KINDS: dict[str, Kind] = {
    **{kind.__qualname__: _dataclass(kind) for kind in _CLASSES},
    "Guarded": Kind(Guarded, ("run", "graph", "name", "layouts")),
    "Numbers": Kind(lambda given: Numbers(given), ("given",)),
    "Overlap": Kind(Overlap, ("pattern", "sizes", "has_data")),
}
