"""Known values: tensors that depend on no input have a value that capture can compute when Python asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from foregrad.record.trace import Alias

if TYPE_CHECKING:
    from foregrad.record.recorder import Recorder

_LARGEST = 1 << 22


def known_value(recorder: Recorder, alias: Alias) -> torch.Tensor | None:
    """The value of an alias, found by running the recorded ops that made it from constants; None if it has none."""
    return _Evaluation(recorder).value(alias)


class _Evaluation:
    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._values: dict[Alias, torch.Tensor | None] = {}

    def value(self, alias: Alias) -> torch.Tensor | None:
        if alias not in self._values:
            self._values[alias] = self._evaluate(alias)
        return self._values[alias]

    def _evaluate(self, alias: Alias) -> torch.Tensor | None:
        storage = alias.storage
        if storage.num_writes or storage.kind == "input" or alias.spec.num_bytes > _LARGEST:
            return None
        real = self._recorder.constants.get(storage)
        if real is not None:
            return real.as_strided(alias.size, alias.stride, alias.offset) if alias.dtype == real.dtype else None
        if alias.op is None or alias.op >= len(self._recorder.ops):
            return None
        op = self._recorder.ops[alias.op]
        if op.writes or op.renames is not None or torch.Tag.nondeterministic_seeded in op.func.tags:
            return None
        args, kwargs = self._all(op.args), self._all(op.kwargs)
        if args is None or kwargs is None or "empty" in op.func._schema.name:
            return None
        result = op.func(*args, **kwargs)
        return result[alias.position] if isinstance(result, (list, tuple)) else result

    def _all(self, value: Any) -> Any:
        """Arguments with every alias replaced by its value; None if one has none."""
        if isinstance(value, Alias):
            return self.value(value)
        if isinstance(value, dict):
            found = {k: self._all(v) for k, v in value.items()}
            return None if any(found[k] is None and value[k] is not None for k in value) else found
        if isinstance(value, (list, tuple)):
            items = [self._all(v) for v in value]
            return None if any(i is None and v is not None for i, v in zip(items, value, strict=True)) else items
        return value
