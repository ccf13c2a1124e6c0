"""Record again: a call that was found in a cache, when something asks for more than the entry holds.

Only what the arguments looked like is kept, and the modes of the call: recording reads no data. Modules, variables and
state are as they are by now; where they have changed so that another program comes out, that is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from foregrad.core.errors import BackwardError
from foregrad.core.spec import Spec
from foregrad.process.forks import lock
from foregrad.record.lift.arguments import named_leaves
from foregrad.runtime.guards.torch_guards import example_of
from foregrad.torch_private.autograd import has_hooks
from foregrad.torch_private.marks import MARKS
from foregrad.torch_private.pytree import tree_flatten, tree_unflatten
from foregrad.torch_private.tensors import storage_key, view_base

if TYPE_CHECKING:
    from foregrad.runtime.compiled_stage import CompiledStage


def not_made_again(arguments: dict[str, Any]) -> list[str]:
    """Which arguments tensors that look like them could not stand for in a recording, and why."""
    tensors = [(name, leaf) for name, leaf in named_leaves(arguments) if isinstance(leaf, torch.Tensor)]
    why = [f"the argument {name} {reason}" for name, tensor in tensors if (reason := _is_more(tensor))]
    if why:
        return why
    first: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in tensors:
        other, root = first.setdefault(storage_key(tensor), (name, _root(tensor)))
        if root is not _root(tensor):
            why.append(f"the argument {name} shares memory with {other}, and neither is a view of the other")
    return why


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a view is one of; every other is its own."""
    return tensor if view_base(tensor) is None else view_base(tensor)


def _is_more(tensor: torch.Tensor) -> str | None:
    """What a tensor is beside what its spec says, or a view of such a one that has no history; None if nothing."""
    base = view_base(tensor)
    if base is None:
        whole = tensor.untyped_storage if type(tensor) is torch.Tensor and tensor.layout is torch.strided else None
        is_part = whole is not None and whole().nbytes() != Spec.of(tensor).num_bytes
        return _has_more(tensor) or ("shows a part of its memory only" if is_part else None)
    if tensor.requires_grad or base.requires_grad:
        return "is a view with a history"
    if base.dtype != tensor.dtype:
        return "is a view of a tensor of another dtype"
    return _has_more(tensor) or ("is a view of a tensor that " + more if (more := _is_more(base)) else None)


def _has_more(tensor: torch.Tensor) -> str | None:
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return f"is a {type(tensor).__name__} with the layout {tensor.layout}"
    if tensor.device.type != "cpu":
        return f"is on {tensor.device}"
    if not tensor.is_leaf:
        return "has a history"
    if tensor.grad is not None or has_hooks(tensor) or vars(tensor).keys() - MARKS:
        return "has a gradient, hooks or attributes of its own"
    if tensor.is_conj() or tensor.is_neg() or tensor.is_inference():
        return "is conjugated, negated, or made in inference mode"
    return None


@dataclass(frozen=True)
class _Looks:
    """What an argument looks like, and in which memory it lies; if it is a view, where in it, and of what."""

    spec: Spec
    memory: int
    view: int | None
    base: Spec | None
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Looks:
        base, memory, offset = view_base(tensor), storage_key(tensor), int(tensor.storage_offset())
        if base is None:
            return cls(Spec.of(tensor), memory, None, None, offset)
        return cls(Spec.of(tensor), memory, id(tensor), Spec.of(base), offset)

    def example(self, made: dict[int, torch.Tensor]) -> torch.Tensor:
        """A tensor that looks so, beside those that were made for other arguments."""
        if self.memory not in made:
            made[self.memory] = example_of(self.base or self.spec)
        if self.view is None:
            return made[self.memory]
        if self.view not in made:
            size, stride = tuple(self.spec.shape), tuple(self.spec.stride)
            made[self.view] = made[self.memory].as_strided(size, stride, self.offset)
        return made[self.view]


class Rerecord:
    """Records a call once more, when it is first asked to, and checks that the program is `expected`."""

    def __init__(
        self, name: str, args: Any, kwargs: Any, record: Callable[[Any, Any], tuple[CompiledStage, str]]
    ) -> None:
        leaves, self._structure = tree_flatten((args, kwargs))
        self._leaves = [_Looks.of(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._name = name
        self._record = record
        self._modes = Modes()
        self._lock = lock()
        self.made: CompiledStage | None = None
        self.expected = ""

    def cut(self) -> None:
        """Hold on to nothing of the user's: what was compiled is dropped."""
        self._record = _gone
        if self.made is not None:
            self.made.cut()

    def __call__(self) -> CompiledStage:
        with self._lock:
            if self.made is None:
                made_so_far: dict[int, torch.Tensor] = {}
                leaves = [leaf.example(made_so_far) if isinstance(leaf, _Looks) else leaf for leaf in self._leaves]
                args, kwargs = tree_unflatten(leaves, self._structure)
                with self._modes.again():
                    made, contents = self._record(args, kwargs)
                if contents != self.expected:
                    raise BackwardError(
                        f"{self._name} was found in a cache, without a recording. One is needed now, for a backward of "
                        "an unusual kind or to show the program, but a module, a variable or a mode that it reads has "
                        "changed since the call.\nDo this before the change, or compile with cache=False."
                    )
                self.made = made
            return self.made


def _gone(args: Any, kwargs: Any) -> Any:
    raise BackwardError("what this was compiled by is gone, so that nothing of it can be recorded any more.")


class Modes:
    """The modes of torch in which a call is made: a backward is run in others."""

    def __init__(self) -> None:
        self._is_inference, self._has_grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self._autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    @contextmanager
    def again(self) -> Iterator[None]:
        is_on, dtype = self._autocast
        autocast = torch.autocast("cpu", dtype, is_on, torch.is_autocast_cache_enabled())
        with torch.inference_mode(self._is_inference), torch.set_grad_enabled(self._has_grad), autocast:
            yield
