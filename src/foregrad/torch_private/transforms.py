"""The private names of torch's function transforms, and of those by which tensors are batched: `torch.func.vmap`, and
`is_grads_batched`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _functorch as functorch
from torch._C._functorch import is_functorch_wrapped_tensor

__all__ = ["Batch", "batch_of", "is_functorch_wrapped_tensor", "is_transformed", "no_transforms"]


@contextmanager
def no_transforms() -> Iterator[None]:
    """Leave all transforms of `torch.func` that are around, for a while: what is made inside is a plain tensor."""
    layers = []
    while functorch.peek_interpreter_stack() is not None:
        layers.append(functorch.pop_dynamic_layer_stack())
    try:
        yield
    finally:
        while layers:
            functorch.push_dynamic_layer_stack(layers.pop())


def is_transformed(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for several, or for one that a transform of torch's looks at."""
    return is_functorch_wrapped_tensor(tensor) or functorch.is_legacy_batchedtensor(tensor)


@dataclass(frozen=True)
class Batch:
    """Tensors batched by the innermost `vmap`; `wholes` have the batch as their first dimension, or None for a tensor
    that is the same for each example."""

    given: tuple[torch.Tensor, ...]
    wholes: tuple[torch.Tensor | None, ...]
    level: int
    is_legacy: bool

    @property
    def size(self) -> int:
        return next(whole.size(0) for whole in self.wholes if whole is not None)

    def example(self, place: int) -> list[torch.Tensor]:
        """The tensors of one example."""
        return [t if whole is None else whole[place] for t, whole in zip(self.given, self.wholes, strict=True)]

    def empty_example(self) -> list[torch.Tensor]:
        """What an example would look like, if there were any."""
        return [t if w is None else w.new_zeros(w.shape[1:]) for t, w in zip(self.given, self.wholes, strict=True)]

    def together(self, results: Sequence[Sequence[Any]], size: int) -> tuple[Any, ...]:
        """The first results of each example as batched tensors."""
        add = torch._add_batch_dim if self.is_legacy else functorch._add_batch_dim
        columns = zip(*results, strict=True)
        return tuple(None if one[0] is None else add(torch.stack(one)[:size], 0, self.level) for one in columns)


def batch_of(tensors: Sequence[torch.Tensor]) -> Batch | None:
    """How tensors are batched; None if they are not, or only inside of what another transform looks at."""
    levels = [functorch.maybe_get_level(t) for t in tensors if is_functorch_wrapped_tensor(t)]
    if levels:
        level = max(levels)
        top = [t for t in tensors if is_functorch_wrapped_tensor(t) and functorch.maybe_get_level(t) == level]
        if not all(map(functorch.is_batchedtensor, top)):
            return None
        wholes = tuple(_whole(t) if any(t is one for one in top) else None for t in tensors)
        return Batch(tuple(tensors), wholes, level, is_legacy=False)
    for level in range(_num_legacy_levels() if any(map(functorch.is_legacy_batchedtensor, tensors)) else 0, 0, -1):
        legacy = tuple(_legacy_whole(t, level) for t in tensors)
        if any(whole is not None for whole in legacy):
            return Batch(tuple(tensors), legacy, level, is_legacy=True)
    return None


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    whole: torch.Tensor = functorch.get_unwrapped(tensor)
    return whole.movedim(functorch.maybe_get_bdim(tensor), 0)


def _legacy_whole(tensor: torch.Tensor, level: int) -> torch.Tensor | None:
    """A tensor with the batch of this level as its first dimension, if it has one."""
    if not functorch.is_legacy_batchedtensor(tensor):
        return None
    of_one, of_two = (torch._remove_batch_dim(tensor, level, size, 0) for size in (1, 2))  # as large, if it has none
    return of_one if of_one.size(0) == of_two.size(0) else None


def _num_legacy_levels() -> int:
    level = torch._C._vmapmode_increment_nesting() - 1  # the only way to ask
    torch._C._vmapmode_decrement_nesting()
    return level
