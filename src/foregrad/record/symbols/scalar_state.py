"""Scalar state: the value of a small tensor as a number, where it depends on small tensors of declared state alone.

Adam keeps its step in a tensor, adds one to it and reads it. The tensor op is part of the program as any other; beside
it the same arithmetic is done on numbers, so that what Python computes from the step is known before the program runs.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from foregrad.core.spec import is_number
from foregrad.record.ghosts.storages import StorageTable
from foregrad.record.ops import Alias, Op, Storage, aliases_in
from foregrad.record.symbols.numbers import Expression, Float, Int, SymbolicNumbers
from foregrad.torch_private.ops import schema_of

aten = torch.ops.aten


def to_float32(value: float) -> float:
    """The nearest number that single precision has."""
    return ctypes.c_float(value).value


#: How a number is rounded to what a tensor of this dtype can hold.
_ROUND: dict[torch.dtype, Callable[[Any], Any] | None] = {
    torch.float32: to_float32,
    torch.float64: None,
    torch.int64: None,
    torch.bool: None,
}

#: One op of these on single precision is the op on doubles, rounded once.
_ARITHMETIC = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
_UNARY: dict[str, Callable[..., Any]] = {"neg": operator.neg, "sqrt": math.sqrt}
_COPIES = {"clone", "_to_copy", "copy", "detach", "lift_fresh", "fill", "scalar_tensor"}
_NUMBERS = {"zeros": 0, "zeros_like": 0, "ones": 1, "ones_like": 1, "zero": 0}


class Mirror:
    """Numbers beside the tensors of a recording; `read` gives the number in an input, if that is declared state."""

    def __init__(
        self,
        ops: Sequence[Op],
        memory: StorageTable,
        constants: dict[Storage, torch.Tensor],
        numbers: SymbolicNumbers,
        read: Callable[[Storage], Any],
    ) -> None:
        self._ops = ops
        self._memory = memory
        self._constants = constants
        self._numbers = numbers
        self._read = read
        self._writes: dict[Storage, list[Op]] = {}
        self._num_seen = 0

    def value(self, alias: Alias) -> Any:
        """The number that a tensor holds now; None if it has none."""
        for op in self._ops[self._num_seen :]:
            for written in op.writes:
                self._writes.setdefault(written.storage, []).append(op)
        self._num_seen = len(self._ops)
        return self._value(alias, len(self._ops))

    def _value(self, alias: Alias, before: int) -> Any:
        storage, block = alias.storage, self._memory[alias.storage]
        is_small = alias.size == () == block.root.size and alias.dtype == block.root.dtype and not alias.bits
        if not is_small or storage.device.type != "cpu" or alias.dtype not in _ROUND or block.is_grown:
            return None
        writes = [op for op in self._writes.get(storage, ()) if op.index < before]
        if writes:
            return self._result(writes[-1], writes[-1].writes, storage)
        if storage.kind == "input":
            return self._read(storage)
        if storage.kind == "constant":
            return self._constants[storage].item()
        root = block.root
        if root.op is None or root.op >= len(self._ops):
            return None
        return self._result(self._ops[root.op], tuple(aliases_in(self._ops[root.op].outputs)), storage)

    def _result(self, op: Op, results: tuple[Alias, ...], storage: Storage) -> Any:
        """What an op left in a storage, by arithmetic on numbers."""
        name = schema_of(op.func).name.split("::")[-1]
        place = next(i for i, alias in enumerate(results) if alias.storage is storage)
        args = list(op.args)
        if name.startswith("_foreach_"):
            args = [a[place] if isinstance(a, list) else a for a in args]
            name = name.removeprefix("_foreach_")
        name = name if name == "_to_copy" else name.removesuffix("_")
        dtype = self._memory[storage].root.dtype
        if name in _NUMBERS:
            return _NUMBERS[name] if dtype == torch.int64 else float(_NUMBERS[name])
        if op.kwargs.get("alpha", 1) != 1 or op.kwargs.get("rounding_mode") is not None:
            return None
        if name in ("full", "fill", "copy"):
            args = args[1:]
        if name in _COPIES or name == "full":
            return self._rounded(self._number(args[0], dtype, op.index), dtype)
        if name in _UNARY:
            value = self._number(args[0], dtype, op.index)
            return None if value is None else self._rounded(self._compute(_UNARY[name], value), dtype)
        function = _ARITHMETIC.get(name)
        if function is None or len(args) < 2 or (len(args) > 2 and args[2] != 1):
            return None
        wide = dtype if dtype != torch.bool else next(a.dtype for a in aliases_in(args))
        left, right = (self._number(a, wide, op.index) for a in args[:2])
        if left is None or right is None:
            return None
        return self._rounded(self._compute(function, left, right), dtype)

    def _number(self, value: Any, dtype: torch.dtype, before: int) -> Any:
        """An argument of an op as a number of the op's dtype."""
        if isinstance(value, Alias):
            found = self._value(value, before)
            return found if found is None or value.dtype == dtype else self._rounded(found, dtype)
        if isinstance(value, Expression):
            return self._rounded(value.symbol(), dtype)
        return self._rounded(value, dtype) if is_number(value) else None

    def _compute(self, function: Callable[..., Any], *args: Any) -> Any:
        if any(isinstance(a, (Float, Int)) for a in args):
            return self._numbers.compute(function, args)
        return function(*args)

    def _rounded(self, value: Any, dtype: torch.dtype) -> Any:
        if value is None or dtype == torch.bool:
            return value
        if dtype.is_floating_point:
            value = self._compute(float, value) if type(value) is int or isinstance(value, Int) else value
            how = _ROUND[dtype]
            return value if how is None else self._compute(how, value)
        return value if type(value) is int or isinstance(value, Int) else None
