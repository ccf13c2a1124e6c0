"""Wrapper inputs: wrapper subclasses among the inputs and results of a recording.

The function gets ghosts of the same types around ghosts of their parts, and autograd runs on these. Each op on them is
theirs to carry out, with ops on their parts, and those are what the recorder sees: a program holds plain tensors only.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.autograd.graph import GradientEdge

from foregrad.core.attach_history import Attached
from foregrad.core.sparse import SparseForm
from foregrad.core.spec import Spec
from foregrad.core.wrapper_subclass import WrapperRecipe, named_parts
from foregrad.record.ghosts.sparse import Sparse
from foregrad.record.lift.input_base import Entered
from foregrad.record.ops import Alias
from foregrad.record.user_objects import RealTensor
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.tensors import view_base


class PlainInput(Protocol):
    """A plain tensor that is an input, and its ghost."""

    ghost: torch.Tensor
    alias: Alias
    spec: Spec


@dataclass(eq=False, slots=True, weakref_slot=True)
class Outer(Entered):
    """A real tensor that wraps others, and its ghost."""

    index: int
    held: weakref.ref[RealTensor]  # the real tensor, while the capture or the recording holds it
    ghost: torch.Tensor
    slot: torch.Tensor | None  # the leaf that stands for the value on entry
    edge: GradientEdge | None  # where the gradient of that value arrives
    entry_node: Any  # grad_fn on entry
    version: int  # of the ghost, on entry
    recipe: WrapperRecipe
    parts: tuple[PlainInput, ...]
    paths: tuple[str, ...]  # the attributes that lead to each part
    is_argument: bool
    is_leaf: bool
    is_view: bool
    spec: Spec
    attributes: frozenset[str]  # of the ghost, on entry
    state_on_entry: tuple[Any, ...]  # what it said of itself then, and the addresses of its parts
    role: str = "input"
    name: str = ""

    @property
    def was_changed(self) -> bool:
        """Whether the function has put other parts into the ghost, or made it say other things of itself."""
        context, *members = state_of(self.ghost)
        return members != [*self.state_on_entry[1:]] or (context != self.state_on_entry[0] and not self.was_rebased)

    @property
    def bumps(self) -> int:
        """How often the function has written to it."""
        return version_of(self.ghost) - self.version

    @property
    def real(self) -> torch.Tensor | None:
        """The real tensor; None once the capture is over."""
        held = self.held()
        return None if held is None else held.tensor

    @property
    def reachable(self) -> torch.Tensor | None:
        return self.real


def make_outer(
    real: torch.Tensor,
    held: weakref.ref[RealTensor],
    lifted: Sequence[PlainInput],
    index: int,
    *,
    is_argument: bool,
    here: Callable[[], str],
) -> Outer:
    """The ghost of a tensor that wraps others, whose parts have ghosts."""
    recipe, slot = WrapperRecipe.of(real), None
    inside = [part.ghost.detach() if part.ghost.requires_grad else part.ghost for part in lifted]
    is_plain = isinstance(recipe.context, SparseForm)
    ghost = Sparse.around(recipe.context, tuple(inside), here) if is_plain else recipe.wrap(inside)
    if isinstance(real, torch.nn.Parameter):
        ghost._is_param = True
    with torch.enable_grad(), no_function_modes():
        if real.requires_grad and real.is_leaf:
            slot = ghost.requires_grad_()
        elif real.requires_grad:
            slot = recipe.wrap([torch.empty_like(part.ghost) for part in lifted]).requires_grad_()
            ghost = Attached.apply(slot, [ghost])  # type: ignore[no-untyped-call]
        edge = None if slot is None else GradientEdge(Probe.apply(slot).grad_fn.next_functions[0][0], 0)  # type: ignore[no-untyped-call]
    return Outer(
        index=index,
        held=held,
        ghost=ghost,
        slot=slot,
        edge=edge,
        entry_node=ghost.grad_fn,
        version=version_of(ghost),
        recipe=recipe,
        parts=tuple(lifted),
        paths=tuple(path for path, _ in named_parts(real)),
        is_argument=is_argument,
        is_leaf=real.is_leaf,
        is_view=view_base(real) is not None,
        spec=Spec(recipe.size, recipe.stride, real.dtype, real.device, real.requires_grad),
        attributes=frozenset(vars(ghost)),
        state_on_entry=state_of(ghost),
    )


def state_of(ghost: torch.Tensor) -> tuple[Any, ...]:
    """What a tensor says of itself, and which its parts are."""
    return (ghost.__tensor_flatten__()[1], *(id(part) for _, part in named_parts(ghost)))  # type: ignore[attr-defined]


class Probe(torch.autograd.Function):
    """A node behind which lies the accumulator of a leaf, found without an op on it."""

    @staticmethod
    def forward(ctx: Any, leaf: torch.Tensor) -> torch.Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None
