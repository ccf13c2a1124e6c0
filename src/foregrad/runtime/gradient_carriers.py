"""Carriers: tensors without data that stand for inputs with a history, so that a backward knows which are asked for."""

from __future__ import annotations

import torch

from foregrad.core.size import sizes_in
from foregrad.core.source import Source
from foregrad.record.trace import AnyInput, TracedInput, TracedWrapper


def carrier(source: Source, given: AnyInput) -> str:
    """A tensor that looks like an input, without memory of its own."""
    if isinstance(given, TracedInput) and sizes_in(given.spec.shape):
        zero = torch.zeros((), dtype=given.spec.dtype, device=given.spec.device)
        return f"{source.name('carrier', zero)}.expand({given.spec.shape})"
    return source.name("carrier", carrier_of(given))


def carrier_of(given: AnyInput) -> torch.Tensor:
    """Something without data that looks like an input."""
    if isinstance(given, TracedWrapper):
        return given.recipe.wrap([carrier_of(part) for part in given.parts])
    return torch.zeros((), dtype=given.spec.dtype, device=given.spec.device).expand(given.spec.shape)
