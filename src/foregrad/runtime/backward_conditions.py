"""Backward conditions: when a generated backward hands over to one that is rarely asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from foregrad.core.source import Source
from foregrad.core.spec import Spec, is_lazy
from foregrad.record.recording import usual_layouts
from foregrad.runtime.guards.torch_guards import SameTensors
from foregrad.torch_private.transforms import is_transformed


def unusual(source: Source, names: Sequence[str], sources: Sequence[torch.Tensor], *, has_sizes: bool) -> list[str]:
    """Conditions under which tangents are not what the usual backward expects: in layout, or by what stands between
    their memory and their data, as batches and lazy negation do."""
    layouts = usual_layouts(sources)
    pairs = zip(sources, layouts, strict=True)
    specs = tuple(replace(Spec.of(one), stride=stride, requires_grad=False) for one, stride in pairs)
    if not has_sizes and all(spec.device.type == "cpu" for spec in specs):
        same = SameTensors(specs, (torch.Tensor,) * len(specs))
        return [f"not {source.made('tangents_are_same', same)}({', '.join(names)})"]
    kind, is_more = source.name("Tensor", torch.Tensor), source.name("is_more", is_more_than_memory)
    return [
        f"type({name}) is not {kind} or {name}.stride() != {stride} or {is_more}({name})"
        for name, stride in zip(names, layouts, strict=True)
    ]


def is_more_than_memory(tensor: torch.Tensor) -> bool:
    """Whether something stands between the memory of a tensor and its data: batches, lazy negation."""
    return is_lazy(tensor) or is_transformed(tensor)
