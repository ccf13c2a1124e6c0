"""Ops that are put off: those that make sparse tensors, which no program holds.

An op on sparse tensors that gives a dense one stands in a program as one op on the dense parts, with the whole chain of
ops that leads from these to its result as its text:

    adjacency @ x       ->  foregrad.of_sparse([indices, values, x], 'mm(of_parts(0, 1), 2)', size, stride, dtype)
    adjacency.t() @ y   ->  foregrad.of_sparse([indices, values, y], 'mm(t(of_parts(0, 1)), 2)', size, stride, dtype)
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.sparse import example_indices, is_sparse
from foregrad.torch_private.dispatch import below_all_autograd
from foregrad.torch_private.ops import OpOverload
from foregrad.torch_private.sparse import FROM_COMPRESSED_PARTS, FROM_PARTS

#: Ops that make a sparse tensor of its parts.
MAKERS = (FROM_PARTS, FROM_COMPRESSED_PARTS, torch.ops.aten.sparse_compressed_tensor.comp_plain_value_size)


@dataclass(frozen=True)
class DensePart:
    """A dense tensor among the arguments of an op, by its place among all those that are needed."""

    place: int


@dataclass(frozen=True)
class PutOff:
    """An op that makes a tensor of dense ones, and of sparse ones that are made so."""

    func: OpOverload
    args: tuple[Any, ...]  # with a `DensePart` or a `PutOff` for each tensor
    kwargs: tuple[tuple[str, Any], ...]
    is_coalesced: bool | None = None  # what is known of its result; None if it depends on data

    def run(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Its result for these dense tensors."""
        with below_all_autograd():
            made: torch.Tensor = self.func(*self._args(parts), **self._kwargs(parts))
        if self.is_coalesced is not None and made.is_coalesced() is not self.is_coalesced:
            raise RuntimeError(f"the result of {self.func} is coalesced in one call and not in another")
        return made

    def try_out(self, parts: Sequence[torch.Tensor]) -> Any:
        """Its result for dense tensors of which only the sizes count."""
        args, kwargs = self._args(parts, is_trial=True), self._kwargs(parts, is_trial=True)
        if self.func in MAKERS:
            first = 3 if self.func is FROM_PARTS else 0
            indices = example_indices(self.func, args, kwargs)
            args = (*args[:first], *indices, *args[first + len(indices) :])
        with below_all_autograd():
            return self.func(*args, **kwargs)

    def _args(self, parts: Sequence[torch.Tensor], *, is_trial: bool = False) -> tuple[Any, ...]:
        return tuple(mapped(functools.partial(_value, parts, is_trial), self.args))

    def _kwargs(self, parts: Sequence[torch.Tensor], *, is_trial: bool = False) -> dict[str, Any]:
        return {name: mapped(functools.partial(_value, parts, is_trial), value) for name, value in self.kwargs}

    def moved(self, places: Sequence[DensePart]) -> PutOff:
        """The same op, of dense tensors at other places."""

        def value(argument: Any) -> Any:
            if isinstance(argument, DensePart):
                return places[argument.place]
            return argument.moved(places) if isinstance(argument, PutOff) else argument

        kwargs = tuple((name, mapped(value, v)) for name, v in self.kwargs)
        return PutOff(self.func, tuple(mapped(value, self.args)), kwargs, self.is_coalesced)

    @property
    def text(self) -> str:
        """The op as text, from which `from_text` makes it again."""
        return _written(self)

    @staticmethod
    def from_text(text: str) -> PutOff:
        made: PutOff = _read(ast.parse(text, mode="eval").body)
        return made

    def __str__(self) -> str:
        return f"made by {self.func}"


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments of an op, each leaf changed; lists are tuples afterwards, so that they can be compared."""
    if isinstance(value, (list, tuple)):
        return tuple(mapped(change, v) for v in value)
    return change(value)


def _value(parts: Sequence[torch.Tensor], is_trial: bool, argument: Any) -> Any:
    if isinstance(argument, DensePart):
        return parts[argument.place]
    if isinstance(argument, PutOff):
        return argument.try_out(parts) if is_trial else argument.run(parts)
    return argument


# -- as text ------------------------------------------------------------------------------------------------

_OF_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _written(value: Any) -> str:
    """An argument as Python's text."""
    if isinstance(value, DensePart):
        return f"parts[{value.place}]"
    if isinstance(value, PutOff):
        given = [*map(_written, value.args), *(f"{name}={_written(v)}" for name, v in value.kwargs)]
        text = f"{value.func}({', '.join(given)})"
        return text if value.is_coalesced is None else f"coalesced({text}, {value.is_coalesced})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_written, value))}]"
    if isinstance(value, torch.device):
        return f"device({str(value)!r})"
    return str(value) if isinstance(value, _OF_TORCH) else repr(value)


def _read(node: ast.expr) -> Any:
    """What a text stands for: only what `_written` writes."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List):
        return tuple(map(_read, node.elts))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_read(node.operand)
    if isinstance(node, ast.Name):
        return float(node.id)  # inf, nan
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return DensePart(int(str(node.slice.value)))
    if isinstance(node, ast.Attribute):
        return getattr(torch, node.attr)
    if not isinstance(node, ast.Call):
        raise ValueError(f"{ast.unparse(node)} is no part of an op on sparse tensors")
    given = tuple(map(_read, node.args))
    if isinstance(node.func, ast.Name) and node.func.id == "device":
        return torch.device(*given)
    if isinstance(node.func, ast.Name):
        return replace(given[0], is_coalesced=given[1])
    namespace, op, overload = ast.unparse(node.func).split(".")
    func = getattr(getattr(getattr(torch.ops, namespace), op), overload)
    return PutOff(func, given, tuple((str(one.arg), _read(one.value)) for one in node.keywords))


# -- as ops of a program ------------------------------------------------------------------------------------

_LIBRARY = torch.library.Library("foregrad", "DEF")
_LIBRARY.define("of_sparse(Tensor[] parts, str op, int[] size, int[] stride, ScalarType dtype) -> Tensor")
_LIBRARY.define("entries_of_sparse(Tensor[] parts, str op) -> Tensor", tags=(torch.Tag.dynamic_output_shape,))
_LIBRARY.define("is_coalesced(Tensor[] parts, str op) -> Tensor")

_read_op = functools.lru_cache(maxsize=1024)(PutOff.from_text)


def _of_sparse(
    parts: list[torch.Tensor], op: str, size: list[int], stride: list[int], dtype: torch.dtype
) -> torch.Tensor:
    made = _entries_of_sparse(parts, op)
    if (list(made.shape), list(made.stride()), made.dtype) != (list(size), list(stride), dtype):
        found, then = f"{list(made.shape)} (strides {list(made.stride())})", f"{list(size)} (strides {list(stride)})"
        raise RuntimeError(f"{_read_op(op).func} has a result of the size {found}; it was captured with {then}")
    return made


def _entries_of_sparse(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    made = _read_op(op).run(parts)
    return made.clone() if any(_share_memory(made, part) for part in parts) else made


def _is_coalesced(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    return torch.tensor(_read_op(op).run(parts).is_coalesced())


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr() and one.numel() > 0


def _look(parts: list[torch.Tensor], op: str, size: list[int], stride: list[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=parts[0].device)


def _look_of_entries(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    torch.library.get_ctx().new_dynamic_size()
    raise AssertionError("its size depends on data, so that the line above raises")


def _look_of_truth(parts: list[torch.Tensor], op: str) -> torch.Tensor:
    return torch.empty((), dtype=torch.bool, device=parts[0].device)


_LIBRARY.impl("of_sparse", _of_sparse, "CPU")
_LIBRARY.impl("entries_of_sparse", _entries_of_sparse, "CPU")
_LIBRARY.impl("is_coalesced", _is_coalesced, "CPU")
torch.library.register_fake("foregrad::of_sparse", _look, lib=_LIBRARY)
torch.library.register_fake("foregrad::entries_of_sparse", _look_of_entries, lib=_LIBRARY)
torch.library.register_fake("foregrad::is_coalesced", _look_of_truth, lib=_LIBRARY)

of_sparse = torch.ops.foregrad.of_sparse.default
entries_of_sparse = torch.ops.foregrad.entries_of_sparse.default
is_coalesced = torch.ops.foregrad.is_coalesced.default


def is_dense(value: Any) -> bool:
    """Whether a result is a tensor of the usual layout."""
    return isinstance(value, torch.Tensor) and not is_sparse(value) and value.layout is torch.strided
