"""Sparse: what stands for a sparse tensor while a function is recorded.

How many entries such a tensor has may depend on data, so no program holds one. An op that makes one is put off: its
result wraps the dense tensors of which it is made, and each call runs the op on what the program gives for these, where
the result is needed.

    embedding_backward(...)     ->  Sparse(indices, values)  ->  a gradient: at each call  _sparse_coo_tensor(...)
    adjacency.t() @ x           ->  Sparse(indices, values)  ->  foregrad.of_sparse([indices, values, x], ...)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.sparse import SparseForm, is_sparse
from foregrad.core.spec import Spec, contiguous_stride
from foregrad.process.no_warnings import no_warnings
from foregrad.record.ghosts.op_results import zeros_like
from foregrad.record.ghosts.put_off import (
    MAKERS,
    DensePart,
    PutOff,
    entries_of_sparse,
    is_coalesced,
    is_dense,
    mapped,
    of_sparse,
)
from foregrad.record.ghosts.table import kind_of
from foregrad.record.origins import where
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.native_code import NO_TORCH_FUNCTION, tensor_of_class
from foregrad.torch_private.ops import OpOverload
from foregrad.torch_private.pytree import tree_leaves
from foregrad.torch_private.sparse import FROM_COMPRESSED_PARTS, FROM_PARTS

aten = torch.ops.aten

#: Ops that return the same tensor, apart from autograd.
_SAME = {aten.detach.default, aten.alias.default}

#: What a call can give to an op again.
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, torch.device}

#: Ops that ask for a part of a sparse tensor: by the op that makes it, which of the arguments that is.
_INDICES, _VALUES = {FROM_PARTS: 3}, {FROM_PARTS: 4, FROM_COMPRESSED_PARTS: 2}
_PARTS_OF = {
    aten._indices.default: _INDICES,
    aten.indices.default: _INDICES,
    aten._values.default: _VALUES,
    aten.values.default: _VALUES,
    aten.crow_indices.default: {FROM_COMPRESSED_PARTS: 0},
    aten.ccol_indices.default: {FROM_COMPRESSED_PARTS: 0},
    aten.col_indices.default: {FROM_COMPRESSED_PARTS: 1},
    aten.row_indices.default: {FROM_COMPRESSED_PARTS: 1},
}

#: Ops whose result has as many entries as their first argument, or as the one at another place.
_KEEP_ENTRIES = {
    **dict.fromkeys((aten.clone.default, aten.t.default, aten.transpose.int, aten.neg.default, aten.abs.default), 0),
    **dict.fromkeys((aten.mul.Scalar, aten.div.Scalar, aten._to_copy.default), 0),
    **dict.fromkeys((aten.sparse_mask.default, aten._sparse_mask_projection.default), 1),
}

#: Ops that make a sparse tensor of indices, of which only those of `FROM_PARTS` and `FROM_COMPRESSED_PARTS` are known.
_UNKNOWN_MAKERS = ("compressed_tensor", "_csr_tensor", "_csc_tensor", "_bsr_tensor", "_bsc_tensor", "sparse_coo_tensor")

#: Ops that raise an error if the tensor is not coalesced.
_OF_COALESCED = {aten.indices.default, aten.values.default}

#: Ops whose result is coalesced, and those whose result is so if their first argument is, or the one at another place.
_COALESCE = {aten._coalesce.default, aten._to_sparse.default}
_KEEP_ORDER = {
    **dict.fromkeys((aten.clone.default, aten.neg.default, aten.mul.Scalar, aten._to_copy.default), 0),
    aten.sparse_mask.default: 1,
}

_SUMS = {aten.add.Tensor, aten.add_.Tensor}
_EMBEDDING = inspect.signature(torch.nn.functional.embedding)


@dataclass(eq=False, slots=True)
class Entries:
    """How many entries a sparse tensor has; None where that depends on data that nobody has asked about yet."""

    number: int | None


class Sparse(torch.Tensor):
    """What stands for a sparse tensor while a function is recorded: the dense tensors of which a call makes it."""

    op: PutOff
    parts: tuple[torch.Tensor, ...]
    versions: tuple[int, ...]  # of the parts, when the op was to run
    like: SparseForm
    entries: Entries
    here: Callable[[], str]  # the user's line that is running
    line: str  # the one that made it

    @staticmethod
    def __new__(
        cls,
        op: PutOff,
        parts: tuple[torch.Tensor, ...],
        versions: tuple[int, ...],
        like: SparseForm,
        entries: Entries,
        here: Any,
    ) -> Sparse:
        made = tensor_of_class(cls, like.size, like.dtype, like.device, torch.sparse_coo)
        made.op, made.parts, made.versions, made.like, made.entries = op, parts, versions, like, entries
        made.here, made.line = here, here()
        return made

    @staticmethod
    def around(form: SparseForm, parts: tuple[torch.Tensor, ...], here: Callable[[], str]) -> Sparse:
        """What stands for a sparse tensor among the inputs, around what stands for its parts."""
        func, args, kwargs = form.call([DensePart(place) for place in range(len(parts))])
        op = PutOff(func, mapped(_itself, args), tuple(kwargs.items()), form.is_coalesced)
        return Sparse(op, parts, tuple(map(version_of, parts)), form, Entries(_num_entries(parts)), here)

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

    # Tensors of a class of Python's can have the layout COO, and no other sparse one.
    layout = property(lambda self: self.like.layout)
    is_sparse = property(lambda self: self.like.layout is torch.sparse_coo)
    is_sparse_csr = property(lambda self: self.like.layout is torch.sparse_csr)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        first = next(v for v in tree_leaves((args, kwargs)) if isinstance(v, Sparse))
        if func in _SAME:
            return Sparse(first.op, first.parts, first.versions, first.like, first.entries, first.here)
        if func in _SUMS and not isinstance(args[0], Sparse):
            return _added(func, args[0], first, kwargs.get("alpha", 1))
        if len(args) == 1 and not kwargs and (answer := first.answer(func)) is not None:
            return answer
        return put_off(func, args, kwargs, first.here)

    def answer(self, func: Any) -> Any:
        """What an op finds in what is known of the tensor; None if it has to run."""
        if func is aten.is_coalesced.default and self.op.is_coalesced is None:
            op, parts, _ = _chain(aten.clone.default, (self,), {}, self.here)
            return bool(is_coalesced(list(parts), op.text))
        if func is aten.is_coalesced.default:
            return self.op.is_coalesced
        if func is aten.sparse_dim.default or func is aten.dense_dim.default:
            return self.like.sparse_dim if func is aten.sparse_dim.default else self.like.dense_dim
        if func is aten._nnz.default:
            return self.count()
        place = _PARTS_OF.get(func, {}).get(self.op.func)
        if place is None or (func in _OF_COALESCED and not self.op.is_coalesced):
            return None
        self.check()
        return self.parts[self.op.args[place].place].detach()

    def count(self) -> int:
        """How many entries it has; that is asked of the data if need be."""
        if self.entries.number is None:
            values = put_off(aten._values.default, (self,), {}, self.here)
            self.entries.number = int(values.size(0))
        return self.entries.number

    def check(self) -> None:
        """Refuse a write to a part since the op was to run: it runs later."""
        if tuple(map(version_of, self.parts)) != self.versions:
            raise _refusal("writes to a tensor of which it has made a sparse one", lambda: self.line)

    def check_result(self) -> None:
        """Refuse it as a result if a part was written, or if it would have a history."""
        self.check()
        if self.requires_grad:
            raise _refusal(
                "returns a sparse tensor that needs a gradient, or differentiates a sparse gradient", lambda: self.line
            )


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


def put_off(func: OpOverload, args: Any, kwargs: Any, here: Callable[[], str]) -> Any:
    """What an op on sparse tensors, or one that makes them, gives: what stands for a sparse tensor, which each call
    makes, or a dense tensor of the program."""
    kind = kind_of(func)
    is_made = not any(isinstance(v, Sparse) for v in tree_leaves((args, kwargs)))
    is_unknown = is_made and func not in MAKERS and _makes_by_indices(func)
    if kind.is_mutable or kind.is_random or is_unknown:
        raise _refusal(f"uses a sparse tensor in {func}", here)
    op, parts, versions = _chain(func, args, kwargs, here)
    try:
        with no_dispatch_modes(), no_function_modes(), no_warnings(), torch.no_grad():
            made = op.try_out([zeros_like(part) for part in parts])
            like = SparseForm.of(made) if is_sparse(made) else None
            dense = Spec.of(made) if is_dense(made) else None
    except (RuntimeError, IndexError, ValueError, NotImplementedError) as error:
        raise _refusal(f"uses a sparse tensor in {func} ({str(error).splitlines()[0]})", here) from error
    if dense is not None:
        return _dense(func, args, kwargs, here, dense)
    if like is None:
        raise _refusal(f"uses a sparse tensor in {func}", here)
    op = PutOff(op.func, op.args, op.kwargs, _coalesced_after(func, args, like))
    return Sparse(op, parts, versions, like, Entries(_entries_after(func, args, op, parts)), here)


def _chain(func: OpOverload, args: Any, kwargs: Any, here: Callable[[], str]) -> tuple[PutOff, Any, Any]:
    """An op and those that lead to it from dense tensors; these, and their versions."""
    parts: list[torch.Tensor] = []
    versions: list[int] = []

    def encode(value: Any) -> Any:
        if isinstance(value, Sparse):
            pairs = zip(value.parts, value.versions, strict=True)
            return value.op.moved([add(part, version) for part, version in pairs])
        if isinstance(value, torch.Tensor):
            return add(value, version_of(value))
        if type(value) not in _PLAIN:
            raise _refusal(f"gives {func} a number that varies, and uses a sparse tensor", here)
        return value

    def add(part: torch.Tensor, version: int) -> DensePart:
        if part.device.type != "cpu" or any(type(size) is not int for size in part.size()):
            raise _refusal("uses a sparse tensor elsewhere than on the CPU, or with sizes that vary", here)
        place = next((place for place, other in enumerate(parts) if other is part), None)
        if place is not None and versions[place] == version:
            return DensePart(place)
        parts.append(part)
        versions.append(version)
        return DensePart(len(parts) - 1)

    op = PutOff(func, mapped(encode, args), tuple((k, mapped(encode, v)) for k, v in kwargs.items()))
    return op, tuple(parts), tuple(versions)


def _dense(func: Any, args: Any, kwargs: Any, here: Callable[[], str], look: Spec) -> Any:
    """An op that gives a dense tensor, as an op of the program on dense tensors."""
    op, parts, versions = _chain(func, args, kwargs, here)
    if tuple(map(version_of, parts)) != versions:
        raise _refusal("writes to a tensor of which it has made a sparse one, and uses that", here)
    if func not in _PARTS_OF:
        return of_sparse(list(parts), op.text, list(look.shape), list(look.stride), look.dtype)
    number = args[0].entries.number
    if number is None:
        found = entries_of_sparse(list(parts), op.text)
        args[0].entries.number = found.size(1 if func in (aten.indices.default, aten._indices.default) else 0)
        return found
    return of_sparse(list(parts), op.text, *_look_of_part(look, func, number), look.dtype)


def _look_of_part(look: Spec, func: Any, number: int) -> tuple[list[int], list[int]]:
    """Size and strides of a part with so many entries, laid out as an example is."""
    is_indices = func in (aten.indices.default, aten._indices.default)
    size = [look.shape[0], number] if is_indices else [number, *look.shape[1:]]
    if is_indices and look.stride[0] == 1 and look.shape[0] > 1 and look.shape[1] > 1:
        return size, [1, look.shape[0]]
    return size, list(contiguous_stride(tuple(size)))


def _makes_by_indices(func: OpOverload) -> bool:
    return any(word in func.name() for word in _UNKNOWN_MAKERS)


def _num_entries(parts: Any) -> int:
    return int(parts[1].shape[0] if len(parts) == 2 else parts[1].shape[-1])


def _entries_after(func: OpOverload, args: Any, op: PutOff, parts: Any) -> int | None:
    """How many entries the result of an op has; None if that depends on data."""
    if func in MAKERS:
        given = [parts[one.place] for one in op.args if isinstance(one, DensePart)]
        return _num_entries(given)
    place = _KEEP_ENTRIES.get(func)
    one = None if place is None else args[place]
    return one.entries.number if isinstance(one, Sparse) else None


def _coalesced_after(func: OpOverload, args: Any, look: SparseForm) -> bool | None:
    """Whether the result of an op is coalesced; None if that depends on data, or means nothing."""
    if func is FROM_PARTS:  # as it is told, or as the number of entries says, which is known
        return look.is_coalesced
    if func in _COALESCE:
        return True
    place = _KEEP_ORDER.get(func)
    one = None if place is None else args[place]
    return one.op.is_coalesced if isinstance(one, Sparse) else None


def _itself(value: Any) -> Any:
    return value


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
        with no_dispatch_modes(), no_function_modes():
            form = SparseForm.of(real)
        return OldSparseGrad(PutOff(FROM_PARTS, (), ()), (), (), form, Entries(None), str)


def _added(func: OpOverload, dense: torch.Tensor, sparse: Sparse, alpha: Any) -> torch.Tensor:
    """The sum of a dense tensor and a sparse one, which is dense."""
    sparse.check()
    if not _has_rows(sparse.op):
        total: torch.Tensor = put_off(aten.add.Tensor, (dense, sparse), {"alpha": alpha}, sparse.here)
        return dense.copy_(total) if func is aten.add_.Tensor else total
    for indices, values in _rows(sparse.op, sparse):
        dense = (dense.index_add_ if func is aten.add_.Tensor else dense.index_add)(0, indices, values, alpha=alpha)
    return dense


def _has_rows(op: PutOff) -> bool:
    """Whether a sparse tensor was made of rows and their values, or is a sum of such ones."""
    if op.func is aten.clone.default or (op.func is aten.add.Tensor and not op.kwargs):
        return all(isinstance(one, PutOff) and _has_rows(one) for one in op.args)
    return op.func is FROM_PARTS and op.args[0] == 1


def _rows(op: PutOff, sparse: Sparse) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The rows that a sparse tensor has, and their values, where it was made of these."""
    if op.func is aten.clone.default:
        return _rows(op.args[0], sparse)
    if op.func is aten.add.Tensor and not op.kwargs:
        return [pair for one in op.args for pair in _rows(one, sparse)]
    indices, values = (sparse.parts[part.place] for part in op.args[3:5])
    return [(indices.select(0, 0), values)]


def _refusal(what: str, here: Callable[[], str]) -> CaptureError:
    return CaptureError(
        f"the function {what}, which a program cannot hold.\n{here()}\nUse dense gradients (sparse=False), or do this "
        "part outside."
    )
