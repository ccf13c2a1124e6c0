"""Ghosts: plain tensors without memory, and what each op makes of them.

A ghost is on the CPU if what it stands for is; for every other device it is a meta tensor.

View ops run for real, since they only compute sizes. For every other op the sizes of its results come from a
table keyed by the op and what its arguments look like; a FakeTensorMode is asked once for each new key, or the op
itself where it has tensors on the meta device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from foregrad.record.blank import new_ghost
from foregrad.record.devices import CPU, META, Device
from foregrad.record.impure import effect_of, generator_in, is_random, with_own_generator
from foregrad.substrate import (
    FUSED_OPTIMIZERS,
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    OpOverload,
    UnsupportedOperatorException,
    neg_view,
    quiet_torch,
    symbolic_kernels,
)
from foregrad.words.spec import contiguous_stride
from foregrad.words.turns import generator_as_it_was

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Made:
    """A new tensor among the results of an op."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None  # None: the CPU

    @staticmethod
    def like(tensor: torch.Tensor) -> Made:
        device = None if tensor.is_cpu else tensor.device
        return Made(tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, device)


@dataclass(frozen=True, slots=True)
class Given:
    """An argument among the results of an op, by its place among the tensors of the call."""

    place: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an op returns (`Made`, `Given`, None, numbers, nested lists), and which arguments it resizes."""

    result: Any
    resized: tuple[tuple[int, Made], ...]


@dataclass(frozen=True, slots=True)
class Kind:
    """What the schema of an op says about memory."""

    is_view: bool
    is_mutable: bool
    changes_metadata: bool
    writes: tuple[int | str, ...]  # arguments written: position, or name for keyword-only ones
    is_random: bool


#: Ops that write arguments without saying so in their schema: which arguments, and when.
HIDDEN_WRITES: dict[OpOverload, Any] = {
    aten.native_batch_norm.default: lambda args: (3, 4) if args[5] and args[3] is not None else (),
}

#: In-place ops that change the geometry of their first argument and run for real on ghosts.
_METADATA_OPS = {
    aten.set_.default,
    aten.set_.source_Tensor,
    aten.set_.source_Storage,
    aten.set_.source_Storage_storage_offset,
    aten.set_.source_Tensor_storage_offset,
    aten.resize_.default,
    aten.resize_as_.default,
}


#: Those of them that may change how much memory there is.
RESIZES = {aten.resize_.default, aten.resize_as_.default}

#: Fused optimizers write to the gradients, their second argument, only if they are told to scale them.
_SCALE_GRADIENTS = {getattr(op, overload) for op in FUSED_OPTIMIZERS.values() for overload in ("default", "tensor_lr")}

#: Ops of the CPU whose results are laid out otherwise than those of fake tensors (torch 2.13).
_LAID_OUT_OTHERWISE = {aten.rrelu_with_noise.default}

#: Up to how many elements of arguments an op is tried out for the sake of strides alone.
_FEW_ELEMENTS = 1 << 14

#: What torch says when even a fake tensor needs a device for which this build of torch has nothing at all.
_ABSENT = "PyTorch is not linked with support for"


@cache
def kind_of(func: OpOverload) -> Kind:
    schema = func._schema
    writes: list[int | str] = []
    for position, argument in enumerate(schema.arguments):
        where: int | str = argument.name if argument.kwarg_only else position
        if argument.alias_info is not None and argument.alias_info.is_write:
            writes.append(where)
    aliased = [r.alias_info is not None for r in schema.returns]
    return Kind(
        is_view=bool(aliased) and all(aliased) and not schema.is_mutable,
        is_mutable=schema.is_mutable,
        changes_metadata=torch.Tag.inplace_view in func.tags or func in _METADATA_OPS,
        writes=tuple(writes),
        is_random=is_random(func),
    )


def written(func: OpOverload, args: Any, kwargs: Any) -> list[Any]:
    """The arguments that an op writes, out of recorded or real ones."""
    found: list[Any] = []
    for place in written_places(func, args, kwargs):
        value = kwargs.get(place) if isinstance(place, str) else (args[place] if place < len(args) else None)
        found.extend(value if isinstance(value, (list, tuple)) else [value])
    return found


def written_places(func: OpOverload, args: Any, kwargs: Any) -> tuple[int | str, ...]:
    """Which arguments a call writes: position, or name for keyword-only ones."""
    hidden = HIDDEN_WRITES.get(func)
    if hidden is not None:
        return tuple(hidden(args))
    if func in _SCALE_GRADIENTS and kwargs.get("grad_scale") is None:
        return tuple(place for place in kind_of(func).writes if place != 1)
    return kind_of(func).writes


class GhostTable:
    """The sizes that each op gives to its results, learnt once for each way of calling it."""

    def __init__(self, fakes: Any = None) -> None:
        self._outcomes: dict[Any, Outcome] = {}
        self._looks: dict[Any, int] = {}
        self._fakes = fakes or FakeTensorMode(allow_non_fake_inputs=False)
        self._has_symbols = fakes is not None

    def making(self) -> AbstractContextManager[Any]:
        """Where stand-ins of ghosts are made."""
        return self._fakes if self._has_symbols else nullcontext()

    def number_of(self, look: Any) -> int:
        """A small number for what a tensor looks like: cheap to compare."""
        return self._looks.setdefault(look, len(self._looks))

    def outcome(self, key: Any, func: OpOverload, args: Any, kwargs: Any, device: torch.device | None) -> Outcome:
        """What an op returns for these ghosts, of which those on meta stand for tensors on `device`."""
        found = self._outcomes.get(key)
        if found is None:
            found = self._learn(func, args, kwargs, device)
            if key is not None:
                self._outcomes[key] = found
        return found

    def _learn(self, func: OpOverload, args: Any, kwargs: Any, device: torch.device | None) -> Outcome:
        if effect_of(func) is not None and not func._schema.returns:
            return Outcome(None, ())
        is_elsewhere = _is_elsewhere((args, kwargs))
        if is_elsewhere and device == META:
            return _ask_meta(func, args, kwargs)
        is_unsupported = False
        if func in _LAID_OUT_OTHERWISE and not is_elsewhere:
            return _ask_itself(func, args, kwargs)
        with quiet_torch():
            try:
                with self._fakes, torch.no_grad(), symbolic_kernels() if self._has_symbols else nullcontext():
                    found = _ask(func, args, kwargs, lambda ghost: _like(ghost, device), device)
                is_tried = not (is_elsewhere or self._has_symbols or effect_of(func) is not None)
                if not (is_tried and _has_no_elements(found.result)):
                    return _with_own_strides(found, func, args, kwargs) if is_tried else found
            except (DataDependentOutputException, DynamicOutputShapeException):
                raise
            except Exception as error:
                if is_elsewhere and _ABSENT in str(error):
                    return self._learn(func, args, kwargs, META)
                is_unsupported = isinstance(error, (UnsupportedOperatorException, NotImplementedError))
                if is_elsewhere or _depends_on_data(func) or (is_unsupported and _has_integers(args, kwargs)):
                    raise
                if self._has_symbols:
                    raise NotImplementedError(f"{func} with sizes that vary: {error}") from error
            if effect_of(func) is not None:
                raise NotImplementedError(
                    f"{func} has effects, so it cannot be tried out; register a fake kernel for it"
                )
        # The op itself knows best: whether it fails, with which words, and what it returns.
        try:
            return _ask_itself(func, args, kwargs)
        except Exception as error:
            if is_unsupported:  # perhaps only because of the zeros
                raise NotImplementedError(str(error)) from error
            raise


def _has_no_elements(result: Any) -> bool:
    """Whether all that an op makes has no elements: the strides are then often others than those of fake tensors. One
    such tensor among others may be a workspace, which depends on modes."""
    if isinstance(result, (list, tuple)):
        return bool(result) and all(map(_has_no_elements, result))
    return type(result) is Made and 0 in result.size


def _with_own_strides(found: Outcome, func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns, with the strides that its kernel gives to dimensions of size 1: where those of arguments are
    unusual, fake tensors may say another one. No element lies elsewhere for it, so large tensors are not tried. Those
    of `out=` arguments that are resized fake tensors say wrong altogether (torch 2.13)."""
    given = _tensors((args, kwargs))
    is_unusual = func.namespace == "aten" and any(map(_has_unusual_strides, given))
    is_small = sum(t.numel() for t in given) <= _FEW_ELEMENTS and not _has_integers(args, kwargs)
    if not found.resized and not (is_unusual and is_small):
        return found
    try:
        own = _ask_itself(func, args, kwargs)
    except (RuntimeError, ValueError):  # zeros will not do
        return found
    is_alike = _shapes(own.result) == _shapes(found.result)
    return own if is_alike and [p for p, _ in own.resized] == [p for p, _ in found.resized] else found


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
    return (result.size, result.dtype) if type(result) is Made else result


def _ask_itself(func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns for zeros on the CPU. One of torch's that draws gets a generator, so that no other moves."""
    args, kwargs = with_own_generator(func, args, kwargs)
    moves = func.namespace != "aten" or (is_random(func) and generator_in(args, kwargs) is None)
    with generator_as_it_was() if moves else nullcontext(), torch.no_grad():
        return _ask(func, args, kwargs, _zeros_like, None)


def _ask_meta(func: OpOverload, args: Any, kwargs: Any) -> Outcome:
    """What an op returns for tensors that are on meta."""
    try:
        with torch.no_grad():
            return _ask(func, args, kwargs, _like, META)
    except NotImplementedError as error:
        if _depends_on_data(func):
            raise DynamicOutputShapeException(func) from error
        raise


def _is_elsewhere(value: Any) -> bool:
    """Whether a call has to do with a device other than the CPU."""
    if isinstance(value, (torch.Tensor, torch.device)):
        return (value if isinstance(value, torch.device) else value.device).type != "cpu"
    if isinstance(value, (list, tuple)):
        return any(map(_is_elsewhere, value))
    return isinstance(value, dict) and any(map(_is_elsewhere, value.values()))


def _has_integers(args: Any, kwargs: Any) -> bool:
    """Whether an op takes indices or lengths, on whose values the shape of its result may depend."""
    return any(not (t.is_floating_point() or t.is_complex()) for t in _tensors((args, kwargs)))


def outcome_with(func: OpOverload, args: list[Any], kwargs: dict[str, Any], known: set[int]) -> Outcome:
    """What an op returns when the tensors with these ids are known; the others are ghosts, and zeros do for them."""
    return _ask(func, args, kwargs, lambda t: t if id(t) in known else _zeros_like(t), None)


def _depends_on_data(func: OpOverload) -> bool:
    return torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags


def _ask(
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
        (place, Made.like(after))
        for place, (was, after) in enumerate(zip(_tensors((args, kwargs)), given, strict=True))
        if was.size() != after.size() or was.stride() != after.stride()
    )
    return Outcome(_describe(result, {id(t): place for place, t in enumerate(given)}), resized)


def _zeros_like(ghost: torch.Tensor) -> torch.Tensor:
    extent = 1 + sum((size - 1) * stride for size, stride in zip(ghost.size(), ghost.stride(), strict=True))
    return _with_bits(
        torch.zeros(max(extent, 1), dtype=ghost.dtype, device="cpu").as_strided(ghost.size(), ghost.stride()), ghost
    )


def _like(ghost: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
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
            return Given(places[id(result)])
        if result.layout is not torch.strided:
            raise NotImplementedError(f"a result of layout {result.layout}")
        return Made.like(result)
    if isinstance(result, (list, tuple)):
        return type(result)(_describe(r, places) for r in result)
    return result


def make(result: Any, given: list[torch.Tensor], elsewhere: Device) -> Any:
    """The ghosts that an outcome stands for."""
    if type(result) is Made:
        if result.device is None:
            return new_ghost(result.size, result.stride, result.dtype, CPU)
        elsewhere.stand_for(elsewhere.shown(result.device))
        return new_ghost(result.size, result.stride, result.dtype, META)
    if type(result) is Given:
        return given[result.place]
    if isinstance(result, (list, tuple)):
        return type(result)(make(r, given, elsewhere) for r in result)
    return result
