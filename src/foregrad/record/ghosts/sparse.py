"""Sparse: tensors of the layout COO, which each call makes of the dense tensors that the program gives.

How many entries such a tensor has may depend on data, so no program holds one. While a function is recorded, an op that
returns one is put off: its result wraps the dense arguments, and each call runs the op on what the program gives for
these.

    embedding_backward(...)  ->  Sparse(indices, values)  ->  at each call  _sparse_coo_tensor(..., indices, values)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.ghosts.op_results import zeros_like
from foregrad.record.ghosts.table import kind_of
from foregrad.record.origins import where
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.native_code import NO_TORCH_FUNCTION, tensor_of_class
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten

#: Ops that return the same tensor, apart from autograd.
_SAME = {aten.detach.default, aten.alias.default}

#: What a call can give to an op again.
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device}

#: Ops that ask for what a sparse tensor consists of: the place of that among the arguments from which it is made.
_PARTS_OF = {aten._indices.default: 3, aten._values.default: 4}

_SUMS = {aten.add.Tensor, aten.add_.Tensor}
_EMBEDDING = inspect.signature(torch.nn.functional.embedding)
_FROM_PARTS = aten._sparse_coo_tensor_with_dims_and_tensors.default


@dataclass(frozen=True)
class DensePart:
    """A dense tensor among the arguments of an op, by its place among all those that are needed."""

    place: int


@dataclass(frozen=True)
class PutOff:
    """An op that makes a sparse tensor of dense ones, and of others that are made so."""

    func: OpOverload
    args: tuple[Any, ...]  # with a `DensePart` or a `PutOff` for each tensor
    kwargs: tuple[tuple[str, Any], ...]

    def run(self, parts: Sequence[torch.Tensor]) -> torch.Tensor:
        def value(argument: Any) -> Any:
            if isinstance(argument, DensePart):
                return parts[argument.place]
            return argument.run(parts) if isinstance(argument, PutOff) else argument

        args, kwargs = _mapped(value, self.args), {name: _mapped(value, v) for name, v in self.kwargs}
        made: torch.Tensor = self.func(*args, **kwargs)
        return made

    def __str__(self) -> str:
        return f"made by {self.func}"


@dataclass(frozen=True)
class SparseSpec:
    """What a sparse tensor looks like from outside."""

    size: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: torch.Tensor) -> SparseSpec:
        return SparseSpec(tuple(tensor.size()), tensor.dtype, tensor.device)


class Sparse(torch.Tensor):
    """What stands for a sparse tensor while a function is recorded: the dense tensors of which a call makes it."""

    op: PutOff
    parts: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]  # of the parts, when the op was to run
    like: SparseSpec
    here: Callable[[], str]  # the user's line that is running
    line: str  # the one that made it

    @staticmethod
    def __new__(
        cls, op: PutOff, parts: tuple[torch.Tensor, ...], versions: tuple[int, ...], like: SparseSpec, here: Any
    ) -> Sparse:
        made = tensor_of_class(cls, like.size, like.dtype, like.device, torch.sparse_coo)
        made.op, made.parts, made.versions, made.like, made.here, made.line = op, parts, versions, like, here, here()
        return made

    def __tensor_flatten__(self) -> tuple[list[str], PutOff]:
        return [f"part_{place}" for place in range(len(self.parts))], self.op

    def __getattr__(self, name: str) -> Any:
        if name.startswith("part_"):
            return self.parts[int(name.removeprefix("part_"))]
        raise AttributeError(name)

    @staticmethod
    def __tensor_unflatten__(parts: dict[str, torch.Tensor], op: PutOff, size: Any, stride: Any) -> torch.Tensor:
        return op.run(list(parts.values()))

    __torch_function__ = NO_TORCH_FUNCTION

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = next(v for v in (*args, *kwargs.values()) if isinstance(v, Sparse))
        if func in _SAME:
            return Sparse(first.op, first.parts, first.versions, first.like, first.here)
        if func in _PARTS_OF and first.op.func is _FROM_PARTS:
            part: torch.Tensor = first.parts[first.op.args[_PARTS_OF[func]].place]
            return part.detach()
        if func in _SUMS and not isinstance(args[0], Sparse):
            return _added(func, args[0], first, kwargs.get("alpha", 1))
        return put_off(func, args, kwargs, first.here)

    def check(self) -> None:
        """Refuse a write to a part since the op was to run: a call runs it at its end."""
        if tuple(map(version_of, self.parts)) != self.versions:
            raise _refusal("writes to a tensor of which it has made a sparse one", lambda: self.line)
        if self.requires_grad:
            raise _refusal("differentiates a sparse gradient", lambda: self.line)


def sparse_result(func: OpOverload, args: Any, kwargs: Any, here: Callable[[], str]) -> torch.Tensor:
    """What stands for the result of an op that returns a sparse tensor."""
    if func is aten._embedding_bag_backward.default and args[10] is None and args[11:] in ((), (-1,)):
        return _of_bags(args)
    return put_off(func, args, kwargs, here)


def _of_bags(args: Any) -> torch.Tensor:
    """The gradient of an embedding bag, without weights and padding, by the ops that its kernel runs. `bags` says to
    which one each index belongs, and is empty where the forward has not needed that."""
    gradient, indices, offsets, bags, sizes, _, num_rows, is_scaled, mode = args[:9]
    if indices.numel() and not bags.numel():
        bags = offsets.new_zeros(indices.size(0) + 1).index_add_(0, offsets, torch.ones_like(offsets))
        bags[0] -= 1
        bags = bags.cumsum(0, dtype=bags.dtype)[: indices.size(0)]
    made: torch.Tensor = aten._embedding_bag_sparse_backward(
        gradient, indices, offsets, bags, sizes, num_rows, is_scaled, mode, None
    )
    return made


def put_off(func: OpOverload, args: Any, kwargs: Any, here: Callable[[], str]) -> Sparse:
    """The result of an op that returns a sparse tensor, to be made at each call."""
    parts: list[torch.Tensor] = []
    versions: list[int] = []

    def encode(value: Any) -> Any:
        if isinstance(value, Sparse):
            places = [add(part, version) for part, version in zip(value.parts, value.versions, strict=True)]
            return _moved(value.op, places)
        if isinstance(value, torch.Tensor):
            return add(value, version_of(value))
        if type(value) not in _PLAIN:
            raise _refusal(f"gives {func} a number that varies, and uses a sparse tensor", here)
        return value

    def add(part: torch.Tensor, version: int) -> DensePart:
        if part.device.type != "cpu" or any(type(size) is not int for size in part.size()):
            raise _refusal("uses a sparse tensor elsewhere than on the CPU, or with sizes that vary", here)
        parts.append(part)
        versions.append(version)
        return DensePart(len(parts) - 1)

    kind = kind_of(func)
    if kind.is_mutable or kind.is_view or kind.is_random:
        raise _refusal(f"uses a sparse tensor in {func}", here)
    op = PutOff(func, tuple(_mapped(encode, args)), tuple((k, _mapped(encode, v)) for k, v in kwargs.items()))
    try:
        with no_dispatch_modes(), no_function_modes(), torch.no_grad():
            made = op.run([zeros_like(part) for part in parts])
            like = SparseSpec.of(made) if isinstance(made, torch.Tensor) and made.layout is torch.sparse_coo else None
    except (RuntimeError, IndexError, ValueError) as error:
        raise _refusal(f"uses a sparse tensor in {func}", here) from error
    if like is None:
        raise _refusal(f"uses a sparse tensor in {func}", here)
    return Sparse(op, tuple(parts), tuple(versions), like, here)


def embedding(_: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`F.embedding`, of which the sparse gradient may leave out a row."""
    try:
        given = _EMBEDDING.bind(*args, **kwargs)
    except TypeError:  # which the function raises itself
        return func(*args, **kwargs)
    given.apply_defaults()
    indices, weight, padding, max_norm, _, is_scaled, is_sparse = given.arguments.values()
    is_padded = is_sparse and padding is not None and not is_scaled and max_norm is None
    if not is_padded or not weight.requires_grad or not -weight.size(0) <= padding < weight.size(0):
        return func(*args, **kwargs)
    line, apply = where(""), PaddedLookup.apply
    return apply(weight, indices, padding % weight.size(0), lambda: line)  # type: ignore[no-untyped-call]


class PaddedLookup(torch.autograd.Function):
    """An embedding whose sparse gradient leaves out a row: the op that makes it is put off as a whole, since how many
    entries are left depends on data."""

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, indices: torch.Tensor, padding: int, here: Any) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.rest, ctx.here = (weight.size(0), padding, False, True), here
        return torch.embedding(weight, indices, padding, False, True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        if torch.is_grad_enabled():
            raise _refusal("differentiates a sparse gradient", ctx.here)
        args = (gradient, *ctx.saved_tensors, *ctx.rest)
        return put_off(aten.embedding_backward.default, args, {}, ctx.here), None, None, None


class OldSparseGrad(Sparse):
    """What stands for a sparse .grad from before the call, of which nothing is known but that it is there."""

    @staticmethod
    def of(real: torch.Tensor) -> Sparse:
        return OldSparseGrad(PutOff(_FROM_PARTS, (), ()), (), (), SparseSpec.of(real), str)


def _added(func: OpOverload, dense: torch.Tensor, sparse: Sparse, alpha: Any) -> torch.Tensor:
    """The sum of a dense tensor and a sparse one, which is dense."""
    sparse.check()
    for indices, values in _rows(sparse.op, sparse):
        dense = (dense.index_add_ if func is aten.add_.Tensor else dense.index_add)(0, indices, values, alpha=alpha)
    return dense


def _rows(op: PutOff, sparse: Sparse) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The rows that a sparse tensor has, and their values, where it was made of these."""
    if op.func is aten.clone.default:
        return _rows(op.args[0], sparse)
    if op.func is aten.add.Tensor and not op.kwargs:
        return [pair for one in op.args for pair in _rows(one, sparse)]
    if op.func is not _FROM_PARTS or op.args[0] != 1:
        raise _refusal(f"adds a sparse tensor that is {op} to a dense one", sparse.here)
    indices, values = (sparse.parts[part.place] for part in op.args[3:5])
    return [(indices.select(0, 0), values)]


def _moved(op: PutOff, places: list[DensePart]) -> PutOff:
    """The same op, of dense tensors at other places."""

    def value(argument: Any) -> Any:
        if isinstance(argument, DensePart):
            return places[argument.place]
        return _moved(argument, places) if isinstance(argument, PutOff) else argument

    return PutOff(op.func, tuple(_mapped(value, op.args)), tuple((k, _mapped(value, v)) for k, v in op.kwargs))


def _mapped(change: Callable[[Any], Any], value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_mapped(change, v) for v in value)
    return change(value)


def _refusal(what: str, here: Callable[[], str]) -> CaptureError:
    return CaptureError(
        f"the function {what}, which a program cannot hold.\n{here()}\nUse dense gradients (sparse=False), or do this "
        "part outside."
    )
