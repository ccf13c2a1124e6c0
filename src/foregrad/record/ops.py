"""Ops as they are recorded: storages, aliases of them, and the ops that made or wrote them."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch

from foregrad.core.size import frozen, frozen_all, frozen_shape
from foregrad.core.spec import Spec
from foregrad.torch_private.ops import OpOverload, schema_of

Geometry = tuple[tuple[int, ...], tuple[int, ...], int, torch.dtype]


@dataclass(frozen=True, eq=False, slots=True)
class Storage:
    """One block of memory."""

    index: int
    kind: str  # "input", "constant" or "fresh"
    num_bytes: int  # at first; `resize_` may make it grow
    device: torch.device  # of what it stands for
    ghost_device: torch.device  # on which it was recorded


@dataclass(frozen=True, eq=False, slots=True)
class Alias:
    """A tensor object at one time of its life: a geometry over a storage, and the op that it came from.

    `parent` is the alias of which this one is a view; None for the first of its storage and for a tensor
    that autograd unpacked, of which only the geometry is known.
    """

    index: int
    object: int
    storage: Storage
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    bits: int  # 1: conjugate, 2: negative
    parent: Alias | None
    op: int | None
    position: int
    meta: int

    @property
    def geometry(self) -> Geometry:
        return (self.size, self.stride, self.offset, self.dtype)

    @property
    def spec(self) -> Spec:
        return Spec(self.size, self.stride, self.dtype, self.storage.device)

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where in the user's code an op comes from."""

    code: CodeType | None
    instruction: int
    module: str

    @property
    def file(self) -> str:
        return self.code.co_filename if self.code else ""

    @property
    def line(self) -> int:
        if self.code is None:
            return 0
        for start, end, line in self.code.co_lines():
            if start <= self.instruction < end and line is not None:
                return line
        return self.code.co_firstlineno

    def __str__(self) -> str:
        if self.code is None:
            return "unknown line"
        return f"{self.file}:{self.line} in {self.code.co_name}"


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One ATen call as eager would issue it; tensors are aliases."""

    index: int
    func: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: Any
    phase: int  # 0: forward, 1: backward, 2: backward of the backward ...
    grad_enabled: bool
    origin: Origin
    writes: tuple[Alias, ...] = ()
    is_view: bool = False
    version: int = 0  # of what a view is made of
    redraws: int | None = None  # the op whose random numbers a checkpoint draws again
    renames: Alias | None = None  # the alias that the written object had before a change of its metadata
    adds_node: bool = False  # whether this change is a node in the history of an object that is no view


def aliases_in(value: Any) -> list[Alias]:
    """Every alias in nested lists, tuples and dicts, in order."""
    if isinstance(value, Alias):
        return [value]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in aliases_in(v)]
    if isinstance(value, dict):
        return [a for v in value.values() for a in aliases_in(v)]
    return []


@dataclass(frozen=True, slots=True)
class ItemOf:
    """The number in a tensor, among the arguments of a recorded op or the results of a function."""

    alias: Alias


def aliases_read(value: Any) -> list[Alias]:
    """Every alias in nested arguments of an op, also one of which the op takes the number in it."""
    if isinstance(value, ItemOf):
        return [value.alias]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in aliases_read(v)]
    if isinstance(value, dict):
        return [a for v in value.values() for a in aliases_read(v)]
    return aliases_in(value)


def geometry_of(tensor: torch.Tensor, *, has_symbols: bool = False) -> tuple[Geometry, int]:
    """Where the elements of a tensor lie in its storage, and its conjugate and negative bits."""
    bits = tensor.is_conj() + 2 * tensor.is_neg() if tensor.is_complex() or tensor.is_neg() else 0
    if has_symbols:
        offset = frozen(tensor.storage_offset())
        return (frozen_shape(tensor.size()), frozen_all(tensor.stride()), offset, tensor.dtype), bits
    return (tuple(tensor.size()), tensor.stride(), int(tensor.storage_offset()), tensor.dtype), bits


def short_name(func: Any) -> str:
    """The name of an op without its namespace and overload."""
    if func is operator.getitem:
        return "item"
    return str(schema_of(func).name.split("::")[1]).strip("_") if isinstance(func, OpOverload) else str(func.__name__)
