"""Stand-ins: what recorded arguments look like, and tensors that look like them."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.core.size import Formula, thawed
from foregrad.record.ops import Alias, ItemOf
from foregrad.record.symbols.numbers import Expression


def look_of(value: Any) -> list[Any]:
    """What arguments look like, as a key."""
    if isinstance(value, Alias):
        return [value.meta]
    if isinstance(value, (list, tuple)):
        return [len(value), *(k for v in value for k in look_of(v))]
    if isinstance(value, dict):
        return [k for name, v in value.items() for k in (name, *look_of(v))]
    if isinstance(value, torch.Generator):
        return [object()]
    if isinstance(value, Expression):
        return [type(value.value)]
    if isinstance(value, (ItemOf, Formula)):
        return [float]
    return [type(value), value]


def stand_ins(value: Any) -> Any:
    """Tensors and numbers in the place of recorded ones."""
    if isinstance(value, Alias):
        device = value.storage.device if value.storage.device.type == "cpu" else value.storage.ghost_device
        return torch.empty_strided(thawed(value.size), thawed(value.stride), dtype=value.dtype, device=device)
    if isinstance(value, (list, tuple)):
        return [stand_ins(v) for v in value]
    if isinstance(value, (ItemOf, Formula)):
        return 1.0
    return value.value if isinstance(value, Expression) else thawed(value)
