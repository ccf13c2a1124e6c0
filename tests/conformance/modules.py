"""Every module of PyTorch's database: in training, in evaluation, and in evaluation without gradients."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.testing._internal.common_modules import ModuleInfo, ModuleInput, module_db

from .judge import Compile, Result, Sweep, Trial, judge, spread
from .observe import Seen, fresh, see, see_call, tangents_for, tensors

NUM_SAMPLES = 4


def names() -> tuple[str, ...]:
    return tuple(sorted(_infos()))


def check(name: str, compile_fn: Compile) -> Iterator[Result]:
    yield judge("modules", name, _trials(_infos()[name]), compile_fn)


SWEEP = Sweep("modules", names, check)


def see_training_call(module: nn.Module, args: Any, kwargs: Any, seed: int, *, of: nn.Module | None = None) -> Seen:
    """Call and differentiate as a training loop does: outputs, `.grad` of parameters and inputs, buffers; `of` is the
    module itself, where a compiler gives another one whose names are other ones."""
    inner = module if of is None else of
    inner.zero_grad(set_to_none=True)
    inputs = fresh((args, kwargs))
    output, seen = see_call(module, *inputs, seed=seed)
    results = [t for t in tensors(output) if t.requires_grad]
    if results:
        torch.autograd.backward(results, tangents_for(results))
        seen |= see("gradient of input", [t.grad for t in tensors(inputs)])
        seen |= see("gradient of", {name: p.grad for name, p in inner.named_parameters()})
        seen |= see("generator after backward", torch.get_rng_state())
    seen |= see("state", dict(inner.state_dict()))
    seen |= see("buffer", dict(inner.named_buffers()))
    return seen


@functools.cache
def _infos() -> dict[str, ModuleInfo]:
    return {info.name: info for info in module_db if torch.float32 in info.supported_dtypes("cpu")}


def _trials(info: ModuleInfo) -> Iterator[Trial]:
    for mode in ("train", "eval", "inference"):
        torch.manual_seed(0)
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=True, training=mode == "train"
        )
        for position, sample in spread(samples, NUM_SAMPLES):
            start = functools.partial(_start, info, sample, mode)
            yield Trial(f"{mode}, sample {position}", start, info.module_cls.forward.__code__)


def _start(info: ModuleInfo, sample: ModuleInput, mode: str, compile_fn: Compile) -> Callable[[int], Seen]:
    torch.manual_seed(0)
    build, inputs = sample.constructor_input, sample.forward_input
    module = compile_fn(info.module_cls(*build.args, **build.kwargs).float().train(mode == "train"))
    if "Lazy" in info.name:
        module(*fresh(inputs.args), **fresh(inputs.kwargs))  # the first call only gives the parameters their shapes

    def call(seed: int) -> Seen:
        with torch.set_grad_enabled(mode != "inference"):
            return see_training_call(module, inputs.args, inputs.kwargs, seed)

    return call
