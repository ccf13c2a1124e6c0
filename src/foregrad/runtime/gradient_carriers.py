"""Carriers: tensors without data that stand for inputs with a history, so that a backward knows which are asked for."""

from __future__ import annotations

import torch

from foregrad.core.size import sizes_in
from foregrad.core.source import Source
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.wrapper_inputs import Outer, PlainInput


def carrier(source: Source, given: Lifted | Outer) -> str:
    """A tensor that looks like an input, without memory of its own."""
    if isinstance(given, Lifted) and sizes_in(given.spec.shape):
        zero = torch.zeros((), dtype=given.spec.dtype, device=given.spec.device)
        return f"{source.name('carrier', zero)}.expand({given.spec.shape})"
    return source.name("carrier", carrier_of(given))


def carrier_of(given: PlainInput | Outer) -> torch.Tensor:
    """Something without data that looks like an input."""
    if isinstance(given, Outer):
        return given.recipe.wrap([carrier_of(part) for part in given.parts])
    return torch.zeros((), dtype=given.spec.dtype, device=given.spec.device).expand(given.spec.shape)
