"""Every op of PyTorch's database that has gradients in float32 on CPU, and its in-place variant."""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput

from .judge import Compile, Result, Sweep, Trial, judge, spread
from .observe import Seen, fresh, labelled, see, see_call, tangents_for, tensors

NUM_SAMPLES = 4

CHOSEN_OTHERWISE = {
    "prod": "eager looks for zeros in the data and picks a formula by that",
    "masked.prod": "as prod",
    "ormqr": "eager writes in place where no mode looks on, and leaves another layout",
}
"""Ops whose gradient formula depends on data or on a mode being on: their gradients are equal to rounding only."""


def names() -> tuple[str, ...]:
    return tuple(sorted(_infos()))


def check(name: str, compile_fn: Compile) -> Iterator[Result]:
    """One result for the op and, if it has one, one for its in-place variant.

    All samples go through one compiled function, as they would in a program that calls it with many shapes.
    """
    info = _infos()[name]
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _call):
        yield judge("ops", name, _trials(info), compile_fn)
        if info.get_inplace() is not None:
            yield judge("ops in place", name, _inplace_trials(info), compile_fn)


SWEEP = Sweep("ops", names, check)


@functools.cache
def _infos() -> dict[str, OpInfo]:
    return {
        info.full_name: info
        for info in op_db
        if info.supports_autograd and torch.float32 in info.supported_backward_dtypes("cpu")
    }


def _samples(info: OpInfo, requires_grad: bool = True) -> list[tuple[int, SampleInput]]:
    torch.manual_seed(0)
    return spread(info.sample_inputs("cpu", torch.float32, requires_grad=requires_grad), NUM_SAMPLES)


def _trials(info: OpInfo) -> Iterator[Trial]:
    op = info.get_op()

    def call(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    for position, sample in _samples(info):
        start = functools.partial(_start, call, sample, False)
        yield Trial(f"sample {position}", start, call.__code__, info.full_name in CHOSEN_OTHERWISE)


def _inplace_trials(info: OpInfo) -> Iterator[Trial]:
    op = info.get_inplace()

    def on_input(written: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return op(written, *args, **kwargs)

    def on_temporary(source: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return op(source.clone(), *args, **kwargs)

    for position, sample in _samples(info, bool(info.supports_inplace_autograd)):
        if sample.broadcasts_input or not isinstance(sample.input, torch.Tensor):
            continue
        for call, is_written in ((on_input, True), (on_temporary, False)):
            start = functools.partial(_start, call, sample, is_written)
            yield Trial(f"sample {position} {call.__name__}", start, call.__code__)


def _start(
    call: Callable[..., Any], sample: SampleInput, is_written: bool, compile_fn: Compile
) -> Callable[[int], Seen]:
    return functools.partial(_see, compile_fn(call), sample, is_written)


def _see(call: Callable[..., Any], sample: SampleInput, is_written: bool, seed: int) -> Seen:
    first, args, kwargs = fresh((sample.input, sample.args, sample.kwargs))
    leaves = {k: v for k, v in labelled("", (first, *args, kwargs)).items() if _wants_gradient(v)}
    if is_written:
        first = first.clone()
    output, seen = see_call(call, (first, *args), kwargs, seed=seed)
    results = [t for t in tensors(sample.output_process_fn_grad(output)) if t.requires_grad]
    if results:
        wanted = list(leaves.values())
        gradients = torch.autograd.grad(results, wanted, tangents_for(results), allow_unused=True)
        seen |= see("gradient of input", dict(zip(leaves, gradients, strict=True)))
        seen |= see("generator after backward", torch.get_rng_state())
    return seen


def _call(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """In place of the database's wrapper that seeds inside the op: here the caller seeds, and draws are compared."""
    return op(*args, **kwargs)


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
