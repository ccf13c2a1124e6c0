"""The table of ghosts: what each op makes of ghosts, learnt once for each kind of arguments.

A ghost is on the CPU if what it stands for is; for every other device it is a meta tensor.

View ops run for real, since they only compute sizes. For every other op the sizes of its results come from a
table keyed by the op and what its arguments look like; a FakeTensorMode is asked once for each new key, or the op
itself where it has tensors on the meta device.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from foregrad.record.ghosts.allocate import new_ghost
from foregrad.record.ghosts.devices import CPU, META, Device
from foregrad.record.ghosts.op_results import (
    ArgumentResult,
    NewTensor,
    Outcome,
    SparseResult,
    ask,
    ask_itself,
    ask_meta,
    depends_on_data,
    has_integers,
    has_no_elements,
    is_here,
    is_refused_late,
    like,
    with_own_order,
    with_own_strides,
)
from foregrad.record.impure import effect_of, is_random
from foregrad.torch_private.dispatch import symbolic_kernels
from foregrad.torch_private.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
    quiet_torch,
)
from foregrad.torch_private.ops import FUSED_OPTIMIZERS, OpOverload, schema_of

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Kind:
    """What the schema of an op says about memory."""

    is_view: bool
    is_mutable: bool
    changes_metadata: bool
    writes: tuple[int | str, ...]  # arguments written: position, or name for keyword-only ones
    is_random: bool
    bumps_itself: bool  # whether its kernel moves version counters, not autograd


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

#: Ops whose results are views though their schema says otherwise, and those that do the same and say so.
SAYS_NO_VIEW = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}

#: Fused optimizers write to the gradients, their second argument, only if they are told to scale them.
_SCALE_GRADIENTS = {getattr(op, overload) for op in FUSED_OPTIMIZERS.values() for overload in ("default", "tensor_lr")}

#: Ops of the CPU whose results are laid out otherwise than those of fake tensors (torch 2.13).
_LAID_OUT_OTHERWISE = {aten.rrelu_with_noise.default}

#: What torch says when even a fake tensor needs a device for which this build of torch has nothing at all.
_ABSENT = "PyTorch is not linked with support for"


@cache
def kind_of(func: OpOverload) -> Kind:
    schema = schema_of(func)
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
        bumps_itself=schema.is_mutable and schema.name.startswith("aten::_foreach_"),
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
        self._outcomes: dict[torch.dtype, dict[Any, Outcome]] = {}
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
        """What an op returns for these ghosts, of which those on meta stand for tensors on `device`, with the
        default dtype of the moment."""
        outcomes = self._outcomes.setdefault(torch.get_default_dtype(), {})
        found = outcomes.get(key)
        if found is None:
            found = self._learn(func, args, kwargs, device)
            results = found.result if isinstance(found.result, (list, tuple)) else [found.result]
            if (
                kind_of(func).is_random
                and not kind_of(func).is_mutable
                and any(type(one) is ArgumentResult for one in results)
            ):
                raise NotImplementedError("it returns its argument itself, of which its schema says nothing")
            if key is not None:
                outcomes[key] = found
        return found

    def _learn(self, func: OpOverload, args: Any, kwargs: Any, device: torch.device | None) -> Outcome:
        if effect_of(func) is not None and not schema_of(func).returns:
            return Outcome(None, ())
        is_elsewhere = not is_here((args, kwargs))
        if is_elsewhere and device == META:
            return ask_meta(func, args, kwargs)
        is_unsupported = False
        if func in _LAID_OUT_OTHERWISE and not is_elsewhere:
            return ask_itself(func, args, kwargs)
        with quiet_torch():
            try:
                with self._fakes, torch.no_grad(), symbolic_kernels() if self._has_symbols else nullcontext():
                    found = ask(func, args, kwargs, lambda ghost: like(ghost, device), device)
                if self._has_symbols:
                    return with_own_order(found, func, args, kwargs)
                is_tried = not (is_elsewhere or effect_of(func) is not None)
                if not (is_tried and (has_no_elements(found.result) or is_refused_late(func, args, kwargs))):
                    return with_own_strides(found, func, args, kwargs) if is_tried else found
            except (DataDependentOutputException, DynamicOutputShapeException, SparseResult):
                raise
            except Exception as error:
                if is_elsewhere and _ABSENT in str(error):
                    return self._learn(func, args, kwargs, META)
                is_unsupported = isinstance(error, (UnsupportedOperatorException, NotImplementedError))
                if is_elsewhere or depends_on_data(func) or (is_unsupported and has_integers(args, kwargs)):
                    raise
                if self._has_symbols:
                    raise NotImplementedError(f"{func} with sizes that vary: {error}") from error
            if effect_of(func) is not None:
                raise NotImplementedError(
                    f"{func} has effects, so it cannot be tried out; register a fake kernel for it"
                )
        # The op itself knows best: whether it fails, with which words, and what it returns.
        try:
            return ask_itself(func, args, kwargs)
        except Exception as error:
            if is_unsupported:  # perhaps only because of the zeros
                raise NotImplementedError(str(error)) from error
            raise


def make(result: Any, given: list[torch.Tensor], elsewhere: Device) -> Any:
    """The ghosts that an outcome stands for."""
    if type(result) is NewTensor:
        if result.device is None:
            return new_ghost(result.size, result.stride, result.dtype, CPU)
        elsewhere.stand_for(elsewhere.shown(result.device))
        return new_ghost(result.size, result.stride, result.dtype, META)
    if type(result) is ArgumentResult:
        return given[result.place]
    if isinstance(result, (list, tuple)):
        return type(result)(make(r, given, elsewhere) for r in result)
    return result
