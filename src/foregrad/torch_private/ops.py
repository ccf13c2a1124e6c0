"""Ops: overloads, their schemas, and where torch keeps the Python functions for them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._C import DispatchKey
from torch._library.simple_registry import singleton as _registered
from torch._ops import HigherOrderOperator, OpOverload

__all__ = [
    "FUNCTION_HOMES",
    "FUSED_OPTIMIZERS",
    "PACK_PADDED_SEQUENCE",
    "PAD_PACKED_SEQUENCE",
    "HigherOrderOperator",
    "OpOverload",
    "composite_of",
    "is_marked_effectful",
    "overload_name",
    "registered_effect",
    "schema_of",
]

#: Where torch keeps its Python functions for ops.
FUNCTION_HOMES: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
    torch.Tensor,
)


#: What `pack_padded_sequence` and `pad_packed_sequence` call.
PACK_PADDED_SEQUENCE: Any = torch._VF._pack_padded_sequence
PAD_PACKED_SEQUENCE: Any = torch._VF._pad_packed_sequence

#: Functions that do the whole step of an optimizer, and their ops.
FUSED_OPTIMIZERS: dict[Any, Any] = {
    getattr(torch, name): getattr(torch.ops.aten, name)
    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_")
}


def schema_of(op: Any) -> Any:
    """The schema of an op: names, types and aliasing of its arguments and results."""
    return op._schema


def overload_name(op: Any) -> str:
    """Which overload an op is: `Tensor` of `aten::add.Tensor`."""
    return str(op._overloadname)


def registered_effect(func: OpOverload) -> bool:
    """Whether an op is registered as effectful."""
    entry = _registered.get(func._name)
    return entry is not None and entry.effect.effect is not None


def is_marked_effectful(func: OpOverload) -> bool:
    """Whether FX was told that an op, or all of its overloads, has a side effect."""
    marked = fx.node._side_effectful_functions
    return func in marked or func.overloadpacket in marked


@cache
def composite_of(func: OpOverload) -> Callable[..., Any] | None:
    """The kernel of an op that is made of other ops, by which autograd takes it apart; None if it has another one."""
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, DispatchKey.CompositeImplicitAutograd
    is_made_of_ops = has_kernel(func.name(), key) and not has_kernel(func.name(), DispatchKey.CPU)
    return functools.partial(func._op_dk, key) if is_made_of_ops else None
