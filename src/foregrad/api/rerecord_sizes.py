"""Record again for other sizes: a call with symbolic sizes, for the sizes of another call.

A backward of an unusual kind is recorded when it is first asked for, and may assume more about sizes than each call
checks. A call for which that does not hold has a recording of its own made, from what its arguments look like. All that
its program assumes does hold, so the same program comes out, unless a module or a variable has changed since.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.api.rerecord import Modes
from foregrad.core.errors import BackwardError
from foregrad.core.spec import Spec
from foregrad.process.forks import lock
from foregrad.record.lift.inputs import Lifted
from foregrad.record.recording import Recording
from foregrad.runtime.compiled_stage import CompiledStage
from foregrad.runtime.guards.torch_guards import example_of
from foregrad.runtime.size_formulas import Dims, formulas
from foregrad.torch_private.pytree import tree_flatten, tree_unflatten


class RerecordSizes:
    """Records a call again for other dimensions; `expected` is the listing of its program."""

    def __init__(
        self, recording: Recording, args: Any, kwargs: Any, record: Callable[[Any, Any], CompiledStage]
    ) -> None:
        leaves, self._structure = tree_flatten((args, kwargs))
        found = [recording.inputs.find(leaf) if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        lifted = [one if isinstance(one, Lifted) else None for one in found]
        self._leaves = [leaf if one is None else _Like(one) for leaf, one in zip(leaves, lifted, strict=True)]
        assert recording.sizes is not None
        shapes = [None if one is None else (one.spec.shape, one.spec.stride) for one in lifted]
        self._shapes = formulas(recording.sizes, repr(shapes))
        self._record = record
        self._modes = Modes()
        self._lock = lock()
        self._made: dict[Dims, CompiledStage] = {}
        self.expected = ""

    def __call__(self, dims: Dims) -> CompiledStage:
        with self._lock:
            if dims not in self._made:
                self._made[dims] = self._make(dims)
            return self._made[dims]

    def _make(self, dims: Dims) -> CompiledStage:
        found = zip(self._leaves, self._shapes(dims), strict=True)
        leaves = [leaf.example(*shape) if isinstance(leaf, _Like) else leaf for leaf, shape in found]
        args, kwargs = tree_unflatten(leaves, self._structure)
        with self._modes.again():
            made = self._record(args, kwargs)
        if str(made.program) != self.expected:
            raise BackwardError(
                "this backward has to be recorded for the sizes of its call, but a module or a variable that the call "
                "reads has changed since.\nCompile with dynamic=False."
            )
        return made


class _Like:
    """What an argument looked like, but for its sizes."""

    def __init__(self, lifted: Lifted) -> None:
        self._spec, self._is_leaf, self._kind = lifted.spec.plain(), lifted.is_leaf, type(lifted.real)
        self._is_plain = lifted.base is None and not lifted.is_view and lifted.offset == 0

    def example(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
        if not self._is_plain:
            raise BackwardError(
                f"this backward has to be recorded for the sizes of its call, but an argument {self._spec} is a view.\n"
                "Compile with dynamic=False."
            )
        spec = Spec(shape, stride, self._spec.dtype, self._spec.device, self._spec.requires_grad)
        made = example_of(spec, self._kind if self._kind is torch.nn.Parameter else torch.Tensor)
        with torch.enable_grad():
            return made if self._is_leaf else torch.empty_strided(shape, stride, dtype=made.dtype).copy_(made)
