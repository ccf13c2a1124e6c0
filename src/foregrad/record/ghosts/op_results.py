"""Op results: what an op returns, asked of fake tensors, of meta tensors, or of the op itself on zeros."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.default_generator import generator_as_it_was
from foregrad.core.sparse import is_sparse
from foregrad.core.spec import Spec, contiguous_stride
from foregrad.record.ghosts.devices import META
from foregrad.record.impure import generator_in, is_random, with_own_generator
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.fake_tensors import DataDependentOutputException, DynamicOutputShapeException
from foregrad.torch_private.ops import OpOverload, schema_of
from foregrad.torch_private.pytree import tree_leaves, tree_map_only
from foregrad.torch_private.tensors import neg_view

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class NewTensor:
    """A new tensor among the results of an op."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None  # None: the CPU

    @staticmethod
    def like(tensor: torch.Tensor) -> NewTensor:
        device = None if tensor.is_cpu else tensor.device
        return NewTensor(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, device)


@dataclass(frozen=True, slots=True)
class ArgumentResult:
    """An argument among the results of an op, by its place among the tensors of the call."""

    place: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an op returns (`NewTensor`, `ArgumentResult`, None, numbers, lists), and which arguments it resizes."""

    result: Any
    resized: tuple[tuple[int, NewTensor], ...]


class SparseResult(Exception):
    """An op returns a sparse tensor."""


#: Ops that read at some places: few, since others may not be tried on zeros, a workspace of which stops the process.
_READS = {
    aten.index.Tensor,
    aten.index_select.default,
    aten.gather.default,
    aten.take.default,
    aten.embedding.default,
}

#: Ops that take values for some places.
_PUTS = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}

#: Up to how many elements of arguments an op is tried out for the sake of strides alone.
_FEW_ELEMENTS = 1 << 14

#: Backwards that take a gradient and a tensor of its shape, element by element, and are not marked as pointwise.
_POINTWISE_BACKWARDS = {
    aten.softplus_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.hardsigmoid_backward.default,
    aten.elu_backward.default,
    aten.leaky_relu_backward.default,
    aten.log_sigmoid_backward.default,
    aten.hardshrink_backward.default,
    aten.softshrink_backward.default,
}

#: Up to how many where operands lie in different orders, and the result anywhere.
_MOST_ELEMENTS = 1 << 26


def has_no_elements(result: Any) -> bool:
    """Whether all that an op makes has no elements: the strides are then often others than those of fake tensors. One
    such tensor among others may be a workspace, which depends on modes."""
    if isinstance(result, (list, tuple)):
        return bool(result) and all(map(has_no_elements, result))
    return type(result) is NewTensor and 0 in result.size


def is_refused_late(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether a kernel refuses what fake tensors accept (torch 2.13): indices into a dimension without elements, values
    of another dtype for `index_put`, and results that do not fit the dtype that they are written to (`mul_`)."""
    if func in _PUTS:
        values = args[2] if len(args) > 2 else kwargs["values"]
        return bool(args[0].dtype != values.dtype)
    is_read = func in _READS and not all(t.numel() for t in _tensors((args, kwargs)))
    if not (is_read or _may_not_fit(func, args, kwargs)):
        return False
    try:
        ask_itself(func, args, kwargs)
    except (IndexError, RuntimeError, ValueError) as error:
        words = ("out of", "dim should be positive", "can't be cast")  # else zeros will not do
        return isinstance(error, IndexError) or any(word in str(error) for word in words)
    return False


def _may_not_fit(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether type promotion may give a pointwise op a result that cannot be cast to the tensor which it writes."""
    is_such = torch.Tag.pointwise in func.tags or func.name().startswith("aten::_foreach_")
    if not (is_such and schema_of(func).is_mutable) or func is aten.copy_.default or not args:
        return False
    written = min(map(_rank, tree_leaves(args[0])), default=0)
    return any(_rank(value) > written for value in tree_leaves((args[1:], kwargs)))


def _rank(value: Any) -> int:
    """The category of a dtype or number: bool, integral, floating, complex. Nothing is cast to a lower one in place."""
    dtype = value.dtype if isinstance(value, torch.Tensor) else None
    if dtype is not None:
        return 3 if dtype.is_complex else 2 if dtype.is_floating_point else 0 if dtype is torch.bool else 1
    return 3 if isinstance(value, complex) else 2 if isinstance(value, float) else int(isinstance(value, int))


def with_own_strides(found: Outcome, func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns, with the strides that its kernel gives to dimensions of size 1: where those of arguments are
    unusual, fake tensors may say another one. No element lies elsewhere for it, so large tensors are not tried. Those
    of `out=` arguments that are resized fake tensors say wrong altogether (torch 2.13), and so do those of some ops
    whose operands lie in different orders."""
    given = _tensors((args, kwargs))
    is_unusual = func.namespace == "aten" and any(map(_has_unusual_strides, given))
    is_small = sum(t.numel() for t in given) <= _FEW_ELEMENTS and not has_integers(args, kwargs)
    is_other = _has_several_orders(func, given) or _is_normed_otherwise(func, given)
    if not found.resized and not (is_unusual and is_small) and not is_other:
        return found
    try:
        own = ask_itself(func, args, kwargs)
    except (RuntimeError, ValueError):  # zeros will not do
        return found
    is_alike = _shapes(own.result) == _shapes(found.result)
    return own if is_alike and [p for p, _ in own.resized] == [p for p, _ in found.resized] else found


def with_own_order(found: Outcome, func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """The same where sizes vary, for ops whose operands lie otherwise than in order, of which fake tensors may say
    another layout than the kernel has: tried out on tensors of sizes as in this call, whose order of dimensions is
    taken."""
    if func.namespace != "aten" or has_integers(args, kwargs):
        return found
    with no_dispatch_modes():  # fake tensors among them
        now = [_at_hints(t) for t in _tensors((args, kwargs))]
        if all(t.is_contiguous() for t in now) or sum(t.numel() for t in now) > _MOST_ELEMENTS:
            return found
        given = iter(now)
        args, kwargs = tree_map_only(torch.Tensor, lambda _: next(given), (args, kwargs))
        args, kwargs = tree_map_only((torch.SymInt, torch.SymFloat), _hint, (args, kwargs))
        try:
            own = ask_itself(func, args, kwargs).result
        except (RuntimeError, ValueError):  # zeros will not do
            return found
    return Outcome(_in_order_of(found.result, own), found.resized)


def _in_order_of(said: Any, own: Any) -> Any:
    """What fake tensors say, with the order of dimensions that the op itself has for the sizes of this call."""
    if isinstance(said, (list, tuple)) and isinstance(own, (list, tuple)) and len(said) == len(own):
        return type(said)(map(_in_order_of, said, own))
    if type(said) is not NewTensor or type(own) is not NewTensor or tuple(map(_hint, said.size)) != own.size:
        return said
    if tuple(map(_hint, said.stride)) == own.stride or not _is_dense(own):
        return said
    stride, step = list(said.stride), 1
    for dim in sorted(range(len(said.size)), key=lambda dim: (own.stride[dim], -dim)):
        stride[dim], step = step, step * said.size[dim]
    return replace(said, stride=tuple(stride))


def _is_dense(look: NewTensor) -> bool:
    """Whether the elements fill their memory, each in a place of its own."""
    return 0 not in look.size and Spec(look.size, look.stride, look.dtype).is_dense


def _hint(number: Any) -> Any:
    """A number of the call that is captured."""
    return number.node.hint if isinstance(number, (torch.SymInt, torch.SymFloat)) else number


def _at_hints(ghost: torch.Tensor) -> torch.Tensor:
    """A tensor with the sizes of the call that is captured."""
    places = (ghost.size(), ghost.stride())
    size, stride = (list(map(_hint, numbers)) for numbers in places)
    return torch.empty_strided(size, stride, dtype=ghost.dtype)


def _has_several_orders(func: OpOverload, given: list[torch.Tensor]) -> bool:
    """Whether a pointwise op, or a backward of one, has operands of one shape whose dimensions lie in different orders:
    a kernel goes by the first, and what fake tensors say of some by another one (`softplus_backward`, torch 2.13)."""
    is_such = func in _POINTWISE_BACKWARDS or (func.namespace == "aten" and torch.Tag.pointwise in func.tags)
    if not is_such or sum(t.numel() for t in given) > _MOST_ELEMENTS:
        return False
    return len({(t.size(), t.stride()) for t in given}) > len({t.size() for t in given})


def _is_normed_otherwise(func: OpOverload, given: list[torch.Tensor]) -> bool:
    """Whether a batch norm has an input that lies otherwise than in order, or with its channels last: fake tensors say
    that the result lies as the input does, and a kernel gives it in order (torch 2.13)."""
    if "batch_norm" not in func.name() or not given or given[0].numel() > _MOST_ELEMENTS:
        return False
    formats = {4: [torch.channels_last], 5: [torch.channels_last_3d]}.get(given[0].dim(), [])
    return not any(given[0].is_contiguous(memory_format=one) for one in (torch.contiguous_format, *formats))


def _has_unusual_strides(tensor: torch.Tensor) -> bool:
    """Whether some dimension of size 1 has another stride than in a contiguous tensor."""
    usual = contiguous_stride(tuple(tensor.size()))
    return any(
        n == 1 and stride != usual[dim]
        for dim, (n, stride) in enumerate(zip(tensor.size(), tensor.stride(), strict=True))
    )


def _shapes(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_shapes(r) for r in result]
    return (result.size, result.dtype) if type(result) is NewTensor else result


def ask_itself(func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns for zeros on the CPU. One of torch's that draws gets a generator, so that no other moves."""
    args, kwargs = with_own_generator(func, args, kwargs)
    moves = func.namespace != "aten" or (is_random(func) and generator_in(args, kwargs) is None)
    with generator_as_it_was() if moves else nullcontext(), torch.no_grad():
        found = ask(func, args, kwargs, zeros_like, None)
    if _has_numbers(found.result) and func not in _ASK_FOR_NO_DATA:
        raise DataDependentOutputException(func)
    return found


#: Ops that return numbers which depend on no data. An encoder asks the last whether it may take out padded positions:
#: that it may has no consequence but that one, which is refused.
_ASK_FOR_NO_DATA = {
    aten._fused_sdp_choice.default,
    aten._use_cudnn_ctc_loss.default,
    aten._use_cudnn_ctc_loss.Tensor,
    aten.cudnn_is_acceptable.default,
    aten._nested_tensor_from_mask_left_aligned.default,
}


def _has_numbers(result: Any) -> bool:
    if isinstance(result, (list, tuple)):
        return any(map(_has_numbers, result))
    return isinstance(result, (bool, int, float, complex))


def ask_meta(func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns for tensors that are on meta."""
    try:
        with torch.no_grad():
            return ask(func, args, kwargs, like, META)
    except NotImplementedError as error:
        if depends_on_data(func):
            raise DynamicOutputShapeException(func) from error
        raise


def is_here(value: Any) -> bool:
    """Whether a call has to do with the CPU alone."""
    if isinstance(value, (torch.Tensor, torch.device)):
        return (value if isinstance(value, torch.device) else value.device).type == "cpu"
    if isinstance(value, (list, tuple)):
        return all(map(is_here, value))
    return not isinstance(value, dict) or all(map(is_here, value.values()))


def has_integers(args: Any, kwargs: Any) -> bool:
    """Whether an op takes indices or lengths, on whose values the shape of its result may depend."""
    return any(not (t.is_floating_point() or t.is_complex()) for t in _tensors((args, kwargs)))


def outcome_with(func: OpOverload, args: list[Any], kwargs: dict[str, Any], known: set[int]) -> Outcome:
    """What an op returns when the tensors with these ids are known; the others are ghosts, and zeros do for them."""
    return ask(func, args, kwargs, lambda t: t if id(t) in known else zeros_like(t), None)


def depends_on_data(func: OpOverload) -> bool:
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def ask(
    func: OpOverload,
    args: Any,
    kwargs: Any,
    stand_in: Callable[[torch.Tensor], torch.Tensor],
    device: torch.device | None,
) -> Outcome:
    """Run an op on stand-ins for its tensors, and describe what it returns and what it resizes.

    An argument that names the meta device stands for `device`, if there is one.
    """
    given: list[torch.Tensor] = []

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            given.append(stand_in(value))
            return given[-1]
        if isinstance(value, (list, tuple)):
            return type(value)(replaced(v) for v in value)
        if isinstance(value, torch.Generator):
            return torch.Generator(value.device)  # the user's stays where it is
        is_carrier = device is not None and isinstance(value, torch.device) and value.type == "meta"
        return device if is_carrier else value

    result = func(*[replaced(a) for a in args], **{k: replaced(v) for k, v in kwargs.items()})
    resized = tuple(
        (place, NewTensor.like(after))
        for place, (was, after) in enumerate(zip(_tensors((args, kwargs)), given, strict=True))
        if was.size() != after.size() or was.stride() != after.stride()
    )
    return Outcome(_describe(result, {id(t): place for place, t in enumerate(given)}), resized)


def zeros_like(ghost: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU that look as a ghost does."""
    extent = 1 + sum((size - 1) * stride for size, stride in zip(ghost.size(), ghost.stride(), strict=True))
    return _with_bits(
        torch.zeros(max(extent, 1), dtype=ghost.dtype, device="cpu").as_strided(ghost.size(), ghost.stride()), ghost
    )


def like(ghost: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """Another tensor that looks the same, on this device if the ghost is on meta."""
    on = device if device is not None and ghost.is_meta else ghost.device
    return _with_bits(torch.empty_strided(ghost.size(), ghost.stride(), dtype=ghost.dtype, device=on), ghost)


def _with_bits(made: torch.Tensor, ghost: torch.Tensor) -> torch.Tensor:
    if ghost.is_conj():
        made = made.conj()
    return neg_view(made) if ghost.is_neg() else made


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in _tensors(v)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _tensors(v)]
    return []


def _describe(result: Any, places: dict[int, int]) -> Any:
    if isinstance(result, torch.Tensor):
        if id(result) in places:
            return ArgumentResult(places[id(result)])
        if is_sparse(result):
            raise SparseResult
        if result.is_nested:
            raise NotImplementedError("it returns a nested tensor, of which the sizes depend on data")
        if result.layout is not torch.strided:
            raise NotImplementedError(f"a result of layout {result.layout}")
        return NewTensor.like(result)
    if isinstance(result, (list, tuple)):
        return type(result)(_describe(r, places) for r in result)
    return result
