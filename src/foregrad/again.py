"""Again: record a call that was found in a cache, when something asks for more than the entry holds.

Only what the arguments looked like is kept: recording reads no data.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from foregrad.runtime.halves import CompiledStage
from foregrad.runtime.same import example_of
from foregrad.substrate import tree_flatten, tree_unflatten
from foregrad.words.spec import Spec


def can_be_made_again(args: Any, kwargs: Any) -> bool:
    """Whether tensors that look like the arguments are all that a recording needs to be the same."""
    tensors = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor)]
    plain = all(type(t) is torch.Tensor and t.is_leaf and t._base is None and t.device.type == "cpu" for t in tensors)
    return plain and len({t.untyped_storage()._cdata for t in tensors}) == len(tensors)


class Again:
    """Records a call once more, when it is first asked to."""

    def __init__(self, args: Any, kwargs: Any, record: Callable[[Any, Any], CompiledStage]) -> None:
        leaves, self._structure = tree_flatten((args, kwargs))
        self._leaves = [Spec.of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._record = record
        self._lock = threading.Lock()
        self._made: CompiledStage | None = None

    def __call__(self) -> CompiledStage:
        with self._lock:
            if self._made is None:
                leaves = [example_of(leaf) if isinstance(leaf, Spec) else leaf for leaf in self._leaves]
                args, kwargs = tree_unflatten(leaves, self._structure)
                self._made = self._record(args, kwargs)
            return self._made
