"""Attributes: what the function stores in modules while it is recorded."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.record.declared import Slot, Store
from foregrad.record.numbers import expression_of
from foregrad.record.recording import Recording


class Attributes:
    """Attributes of modules as they were: what the function stores in them is an effect, to be repeated."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self.before: dict[int, tuple[torch.nn.Module, dict[str, dict[str, Any]]]] = {}
        for _, top in list(recording.modules.tops.values()):
            for module in top.modules():
                self._snapshot(module)
        recording.modules.on_enter = self._snapshot

    def _snapshot(self, module: torch.nn.Module) -> None:
        if id(module) not in self.before:
            tables = {"__dict__": dict(module.__dict__)}
            tables |= {t: dict(getattr(module, t)) for t in ("_parameters", "_buffers")}
            self.before[id(module)] = (module, tables)

    def restore(self) -> list[Store]:
        """Put recorded tensors and numbers out of the modules again; says which attributes held them."""
        stored = []
        self.recording.modules.on_enter = None
        for module, tables in self.before.values():
            for table, before in tables.items():
                holder = getattr(module, table)
                for key, value in list(holder.items()):
                    if value is not before.get(key) and self._is_ours(value):
                        stored.append(Store(Slot(module, key, key), expression_of(value) or value))
                        if key in before:
                            holder[key] = before[key]
                        else:
                            del holder[key]
        return stored

    def _is_ours(self, value: Any) -> bool:
        is_tensor = isinstance(value, torch.Tensor) and self.recording.recorder.knows(value)
        sizes = self.recording.sizes
        return is_tensor or expression_of(value) is not None or (sizes is not None and sizes.varies(value))
