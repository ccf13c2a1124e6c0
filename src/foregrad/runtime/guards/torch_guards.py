"""Guards of torch's, written in C++, and how to make them again; and guards of hooks."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.generated import Check
from foregrad.core.size import Size
from foregrad.core.source import Source
from foregrad.core.spec import Spec
from foregrad.core.tensor_hooks import has_other_hooks
from foregrad.torch_private.autograd import has_hooks
from foregrad.torch_private.guards import TensorGuards, global_state, global_state_guard

Test = Callable[..., bool]

#: Dimensions of a tensor whose size varies, and those whose stride does.
Free = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class SameTensors:
    """Whether tensors are of the kinds, dtypes, devices and layouts that they were of."""

    specs: tuple[Spec, ...]
    kinds: tuple[type, ...]
    free: tuple[Free, ...] = ()  # for each tensor, where any vary
    names: tuple[str, ...] = ()  # of the tensors, for people

    @staticmethod
    def of(tensors: Sequence[Any], free: tuple[Free, ...], names: tuple[str, ...]) -> SameTensors:
        return SameTensors(tuple(map(Spec.of, tensors)), tuple(map(type, tensors)), free, names)

    def make(self) -> Test:
        examples = [example_of(spec, kind) for spec, kind in zip(self.specs, self.kinds, strict=True)]
        return same_tensors(examples, self.free)

    def why_not(self, tensors: Sequence[Any]) -> str:
        """How tensors differ from these, in words."""
        was = [_words(spec, kind) for spec, kind in zip(self.specs, self.kinds, strict=True)]
        now = [_words(Spec.of(t), type(t)) if isinstance(t, torch.Tensor) else f"a {type(t).__name__}" for t in tensors]
        told = [f"{name} was {a}, is {b}" for name, a, b in zip(self.names, was, now, strict=True) if a != b]
        return "; ".join(told) or "a tensor has another layout or type of device"

    def is_enough_for(self, tensors: Sequence[Any]) -> bool:
        """Whether a guard that is made from this takes these tensors: none has a property that is not said here."""
        plain = all(spec.device.type == "cpu" for spec in self.specs) and {*self.kinds} <= _KINDS
        return plain and self.make()(*tensors)


def _words(spec: Spec, kind: type) -> str:
    return f"{spec.plain()} of type {kind.__name__}" + (" that needs a gradient" if spec.requires_grad else "")


_KINDS = {torch.Tensor, torch.nn.Parameter}


def free_dims(spec: Spec) -> Free:
    """The dimensions of an input whose size varies, and those whose stride does."""
    size, stride = (
        tuple(dim for dim, n in enumerate(values) if isinstance(n, Size)) for values in (spec.shape, spec.stride)
    )
    return size, stride


def same_tensors(examples: Sequence[Any], free: Sequence[Free] = ()) -> Test:
    sizes: Any = [_fixed(t.size(), dims) for t, (dims, _) in zip(examples, free, strict=True)] if free else None
    strides: Any = [_fixed(t.stride(), dims) for t, (_, dims) in zip(examples, free, strict=True)] if free else None
    check: Test = TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    return check


def _fixed(values: Sequence[int], free: tuple[int, ...]) -> list[int | None]:
    return [None if dim in free else value for dim, value in enumerate(values)]


def example_of(spec: Spec, kind: type = torch.Tensor) -> torch.Tensor:
    """A tensor of this kind whose memory nobody touches."""
    ghost = torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(ghost, requires_grad=spec.requires_grad)
    return ghost.requires_grad_(spec.requires_grad)


@dataclass(frozen=True)
class SameState:
    """Whether modes that hold everywhere are as they were: gradients, autocast, the default dtype, threads."""

    state: str

    @staticmethod
    def now() -> SameState:
        return SameState(global_state())

    def with_these_threads(self) -> SameState:
        """The same with as many threads as there are now: compiled code does not depend on their number."""
        return SameState(json.dumps({**json.loads(self.state), "num_threads": torch.get_num_threads()}))

    def why_not(self) -> str:
        """How the modes differ from what they are now, in words."""
        was, now = json.loads(self.state), json.loads(global_state())
        told = [
            f"{name.replace('_', ' ')} was {was[name]}, is {now.get(name)}"
            for name in was
            if was[name] != now.get(name)
        ]
        return "; ".join(told) or "a mode differs"

    def make(self) -> Test:
        check: Test = global_state_guard(self.state).check
        return check


def attention_kernels() -> tuple[bool, ...]:
    """Which kernels of attention torch may choose: those with memory in blocks, the plain one."""
    cuda = torch.backends.cuda
    return cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled()


def other_hooks(source: Source, name: str, hooks: tuple[Any, ...]) -> Check:
    """A check that the hooks of a tensor are those that a program runs in place of the engine."""
    if not hooks:
        return Check(f"{source.name('has_hooks', has_hooks)}({name})", "a tensor has a hook that it did not have")
    others = f"{source.name('has_other_hooks', has_other_hooks)}({name}, {source.name('hooks', hooks)})"
    return Check(others, "a tensor has other hooks than it had")
