"""Python calls: functions of the user's that each call runs on real tensors, once the program has run.

While a function is recorded they are not run: what their tensors hold at that point becomes an output of the program.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.origins import where
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.pytree import TreeSpec, tree_flatten, tree_unflatten

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor among the arguments, or a number that depends on data: the value of an op."""

    op: int
    is_number: bool = False

    def of(self, value: torch.Tensor) -> Any:
        return value.item() if self.is_number else value


@dataclass(frozen=True, eq=False)
class PythonCall:
    """A call of a function, with what it is given; run on the values of the tensors, in order."""

    function: Callable[..., Any]
    leaves: tuple[Any, ...]  # `Given` for tensors
    structure: TreeSpec
    line: str

    @property
    def ops(self) -> tuple[int, ...]:
        return tuple(leaf.op for leaf in self.leaves if isinstance(leaf, Given))

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)

    def __call__(self, *values: torch.Tensor) -> None:
        found = iter(values)
        leaves = [leaf.of(next(found)) if isinstance(leaf, Given) else leaf for leaf in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.structure)
        if self.function(*args, **kwargs) is not None:
            raise TypeError(
                f"fg.python runs {self.name} after the program, so that nothing can use what it returns.\n"
                f"  {self.line}\nLet it return None; compute what is needed with tensors, or outside."
            )


@dataclass(eq=False)
class PythonCalls:
    """The calls that a recording has met so far."""

    recorder: Any
    all: list[PythonCall] = field(default_factory=list)

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if self.recorder.phase:
            raise CaptureError(
                f"fg.python runs a function inside a backward that is recorded.\n{self._where()}\nRun it in the "
                "function itself, or in a hook that is registered outside."
            )
        leaves, structure = tree_flatten((args, kwargs))
        given = tuple(map(self._leaf, leaves))
        self.all.append(PythonCall(function, given, structure, self._where().strip()))

    def _leaf(self, leaf: Any) -> Any:
        if expression_of(leaf) is not None:
            raise CaptureError(
                f"fg.python is given a number of declared state, such as a learning rate.\n{self._where()}\nLet the "
                "function read it where it is kept."
            )
        item = item_of(leaf)
        if item is None and not isinstance(leaf, torch.Tensor):
            return leaf
        with no_function_modes():
            self.recorder.dispatch(aten.clone.default, (leaf if item is None else item.tensor,), {})
        return Given(len(self.recorder.ops) - 1, item is not None)

    def _where(self) -> str:
        return where(self.recorder.module)
