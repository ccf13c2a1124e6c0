"""Attributes: what the function stores in modules while it is recorded."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.process.garbage_collection import is_young
from foregrad.record.lift.declared_state import Slot, StateStore
from foregrad.record.recording import Recording
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of
from foregrad.torch_private.modules import TABLES

#: Values without contents that could change.
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


class ModuleAttributes:
    """Attributes of modules as they were: what the function stores in them is an effect, to be repeated."""

    def __init__(self, recording: Recording, *, plain: bool) -> None:
        """With `plain`, numbers, flags and texts that it changes are stored at each call as well."""
        self.recording = recording
        self.plain = plain
        self.before: dict[int, tuple[torch.nn.Module, dict[str, dict[str, Any]]]] = {}
        self.made: list[tuple[str, torch.nn.Module]] = []  # modules that the function made and stored, and where
        for _, top in list(recording.modules.tops.values()):
            for module in top.modules():
                self._snapshot(module)
        self._first = frozenset(self.before)
        recording.modules.on_enter = self._snapshot

    def _snapshot(self, module: torch.nn.Module) -> None:
        if id(module) not in self.before:
            tables = {"__dict__": dict(module.__dict__)}
            tables |= {t: dict(getattr(module, t)) for t in TABLES}
            self.before[id(module)] = (module, tables)

    def restore(self) -> list[StateStore]:
        """Put recorded tensors and numbers out of the modules again; says which attributes held them."""
        stored = []
        self.recording.modules.on_enter = None
        for module, tables in self.before.values():
            for table, before in tables.items():
                holder = getattr(module, table)
                for key, value in list(holder.items()):
                    if value is before.get(key) or not self._is_stored(value) or self._was_made_inside(module):
                        continue
                    if isinstance(value, torch.nn.Module):
                        self.made.append((f"{self.recording.modules.path(module)}.{key}".strip("."), value))
                    else:
                        stored.append(StateStore(Slot(module, key, key), expression_of(value) or value))
                    if key in before:
                        holder[key] = before[key]
                    else:
                        del holder[key]
        return stored

    def _was_made_inside(self, module: torch.nn.Module) -> bool:
        """Whether it is the function's own, and nobody's when that returns."""
        return id(module) not in self._first and is_young(module)

    def _is_stored(self, value: Any) -> bool:
        return self._is_ours(value) or (self.plain and type(value) in _PLAIN)

    def _is_ours(self, value: Any) -> bool:
        if isinstance(value, torch.nn.Module):
            return any(self._is_ours(tensor) for tensor in (*value.parameters(), *value.buffers()))
        is_tensor = isinstance(value, torch.Tensor) and self.recording.recorder.knows(value)
        sizes = self.recording.sizes
        is_number = expression_of(value) is not None or item_of(value) is not None
        return is_tensor or is_number or (sizes is not None and sizes.varies(value))
