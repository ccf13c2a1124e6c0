"""Tensors from lists in which there are tensors, or numbers of them, such as `torch.tensor([loss, x.item(), 1.0])`.

Torch reads such tensors past the dispatcher, one number after the other. In a program the numbers are put in their
places by ops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch

from foregrad.record.symbols.data_values import item_of
from foregrad.torch_private.dispatch import no_dispatch_modes

Tensor = torch.Tensor


def has_tensors(value: Any) -> bool:
    """Whether there are tensors in nested lists and tuples, or numbers that depend on data."""
    if isinstance(value, (list, tuple)):
        return any(isinstance(v, Tensor) or has_tensors(v) for v in value)
    return item_of(value) is not None


def tensor_of(make: Callable[[Any], Tensor], value: Any, known: Callable[[Tensor], Tensor | None]) -> Tensor:
    """What `make` gives for lists with tensors in them: dtype, shape and errors are those that it has for zeros.
    Tensors that depend on no input have a value that is known."""
    values = {path: known(tensor) for path, tensor in _tensors_in(value, ())}
    made = make(_with_values(value, values, ()))
    unknown = [(path, tensor) for path, tensor in _tensors_in(value, ()) if values[path] is None]
    if not unknown:
        return made
    with torch.no_grad():
        rows = list(made.reshape(-1).unbind())
        for path, tensor in unknown:
            place = sum(number * math.prod(made.shape[dim + 1 :]) for dim, number in enumerate(path))
            rows[place] = tensor.reshape(()).to(made.dtype)  # torch takes tensors of one element only
        return _stacked(rows, made.shape)


def _stacked(rows: list[Tensor], shape: torch.Size) -> Tensor:
    """A new tensor of this shape, which is no view, as torch makes it of lists."""
    if not shape:
        return rows[0].clone()
    size = math.prod(shape[1:])
    return torch.stack([_stacked(rows[place : place + size], shape[1:]) for place in range(0, len(rows), size)])


def _with_values(value: Any, values: dict[tuple[int, ...], Tensor | None], path: tuple[int, ...]) -> Any:
    if isinstance(value, Tensor):
        with no_dispatch_modes():
            found = values[path]
            return torch.zeros(value.shape, dtype=value.dtype, device="cpu") if found is None else found
    if item_of(value) is not None:
        return 0.0
    if isinstance(value, (list, tuple)):
        return [_with_values(item, values, (*path, place)) for place, item in enumerate(value)]
    return value


def _tensors_in(value: Any, path: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Tensor]]:
    item = item_of(value)
    if isinstance(value, Tensor):
        yield path, value
    elif item is not None:
        yield path, item.tensor
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _tensors_in(item, (*path, place))
