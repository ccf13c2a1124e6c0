"""Python calls: functions of the user's that each call runs on real tensors, once the program has run.

While a function is recorded they are not run: what their tensors hold at that point becomes an output of the program.
Each call makes the containers and objects anew that hold these.
"""

from __future__ import annotations

import copy
import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy
import torch
from torch.utils import checkpoint

from foregrad.core.errors import CaptureError
from foregrad.core.plain_objects import held_by, is_plain
from foregrad.process.garbage_collection import young_objects
from foregrad.record.origins import where
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.pytree import ObjectNode, TreeSpec, node_of, tree_flatten, tree_unflatten
from foregrad.torch_private.transforms import is_functorch_wrapped_tensor

aten = torch.ops.aten

_CONSTANTS = (int, float, bool, str, complex, type(None), bytes, torch.dtype, torch.device, torch.layout, type)
_COPIED = (set, frozenset, bytearray, numpy.ndarray)


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor among the arguments, or a number that depends on data: the value of an op."""

    op: int
    is_number: bool = False

    def of(self, value: torch.Tensor) -> Any:
        return value.item() if self.is_number else value


@dataclass(frozen=True, slots=True)
class Copied:
    """A value without tensors that the function called may write to."""

    value: Any


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
        args, kwargs = tree_unflatten([_made(leaf, found) for leaf in self.leaves], self.structure)
        if self.function(*args, **kwargs) is not None:
            raise TypeError(
                f"fg.python runs {self.name} after the program, so that nothing can use what it returns.\n"
                f"  {self.line}\nLet it return None; compute what is needed with tensors, or outside."
            )


def _made(leaf: Any, values: Any) -> Any:
    if isinstance(leaf, Given):
        return leaf.of(next(values))
    return copy.copy(leaf.value) if isinstance(leaf, Copied) else leaf


@dataclass(eq=False)
class PythonCalls:
    """The calls that a recording has met so far."""

    recorder: Any
    all: list[PythonCall] = field(default_factory=list)
    is_closed: bool = False  # the function has returned
    copies: frozenset[int] = frozenset()  # ids of what the function was given in the place of the caller's

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        if self.recorder.phase or self.is_closed:
            if _is_computed_again():
                return
            raise CaptureError(
                f"fg.python runs a function inside a backward that is recorded.\n{self._where()}\nRun it in the "
                "function itself, or in a hook that is registered outside."
            )
        opener = _Opener(young_objects(), self.copies, self._where())
        leaves, structure = tree_flatten(opener.opened((args, kwargs)))
        given = tuple(map(self._leaf, leaves))
        self.all.append(PythonCall(function, given, structure, self._where().strip()))

    def _leaf(self, leaf: Any) -> Any:
        expression = expression_of(leaf)
        if expression is not None and not expression.is_given:
            raise CaptureError(
                f"fg.python is given a number of declared state, such as a learning rate.\n{self._where()}\nLet the "
                "function read it where it is kept."
            )
        item = item_of(leaf)
        if item is not None or isinstance(leaf, torch.Tensor):
            tensor = leaf if item is None else item.tensor
            if is_functorch_wrapped_tensor(tensor):
                raise CaptureError(
                    f"fg.python is given a tensor of torch.func, such as one of vmap.\n{self._where()}\nReturn it, and "
                    "give it to the function outside of the transform."
                )
            with no_function_modes():
                self.recorder.dispatch(aten.clone.default, (tensor,), {})
            return Given(len(self.recorder.ops) - 1, item is not None)
        if isinstance(leaf, torch.SymInt):
            return int(leaf)  # there is a program for each value
        return float(leaf) if isinstance(leaf, torch.SymFloat) else leaf

    def _where(self) -> str:
        return where(self.recorder.module)


class _Opener:
    """Takes apart what a function is given: what was made for this call is made anew in each."""

    def __init__(self, is_new: Callable[[Any], bool], copies: frozenset[int], line: str) -> None:
        self._is_new, self._copies, self._line = is_new, copies, line
        self._within: set[int] = set()

    def opened(self, value: Any) -> Any:
        if isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)) and not isinstance(value, torch.Size):
            return value
        if isinstance(value, torch.Size):
            return Copied(torch.Size(map(int, value)))
        if type(value) is not tuple and isinstance(value, _CONSTANTS):
            return value
        if id(value) in self._within:
            self._refuse(value, "which leads to itself")
        self._within.add(id(value))
        try:
            return self._parts(value)
        finally:
            self._within.remove(id(value))

    def _parts(self, value: Any) -> Any:
        is_of_the_call = self._is_new(value) or id(value) in self._copies or not gc.is_tracked(value)
        if isinstance(value, _COPIED):
            if not is_of_the_call and isinstance(value, set):
                self._refuse(value, "which was there before the call")
            return Copied(value)
        node = node_of(value)
        if node is not None:
            if not is_of_the_call and isinstance(value, (list, dict)):
                self._refuse(value, "which was there before the call")
            return node.make([self.opened(one) for one in node.children])
        if is_of_the_call and is_plain(value):
            held = held_by(value)
            return ObjectNode(type(value), tuple(held), tuple(self.opened(one) for one in held.values()))
        if is_of_the_call and not (type(value) is FunctionType and not value.__closure__ and not value.__defaults__):
            self._refuse(value, "which the function has made")
        return value

    def _refuse(self, value: Any, why: str) -> None:
        raise CaptureError(
            f"fg.python is given a {type(value).__name__}, {why}.\n{self._line}\nGive it tensors, numbers and strings, "
            "in new containers and objects; what was there before, let it reach by itself."
        )


def _is_computed_again() -> bool:
    """Whether a checkpoint runs a part of the function once more: that calls nothing a second time."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None
