"""Packed sequences: what torch does in C++ by how many of them each step has, which it reads past its ops.

These numbers are few: capture is told them, as it is told what Python asks of the data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.ops import PACK_PADDED_SEQUENCE, PAD_PACKED_SEQUENCE


def _layer(intercept: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """A recurrent layer; over packed sequences if the numbers stand in the second place."""
    if len(args) > 1 and isinstance(args[1], torch.Tensor) and args[1].dtype == torch.int64:
        args = (args[0], _known(intercept, args[1], func.__name__), *args[2:])
    return func(*args, **kwargs)


def _packed(intercept: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`pack_padded_sequence`: the rows of all sequences, step by step, and how many there are at each."""
    padded, given, is_batch_first = args
    lengths = _known(intercept, given, func.__name__)
    numbers: list[int] = lengths.tolist()
    rows = padded.transpose(0, 1) if is_batch_first else padded
    is_sorted = numbers == sorted(numbers, reverse=True) and numbers[-1:] > [0]
    if not is_sorted or rows.dim() < 2 or len(numbers) != rows.shape[1] or numbers[0] > rows.shape[0]:
        return func(padded, lengths, is_batch_first)  # raises the error
    sizes = [sum(number > step for number in numbers) for step in range(numbers[0])]
    places = [step * rows.shape[1] + place for step, size in enumerate(sizes) for place in range(size)]
    return rows.flatten(0, 1).index_select(0, torch.tensor(places)), torch.tensor(sizes)


def _padded(intercept: Any, func: Any, args: Any, kwargs: Any) -> Any:
    """`pad_packed_sequence`: the same rows, each at its place among padding, and the lengths of the sequences."""
    data, sizes, is_batch_first, padding, total = args
    numbers: list[int] = _known(intercept, sizes, func.__name__).tolist()
    if total != -1 and total < len(numbers):
        return func(*args, **kwargs)  # raises the error
    num_steps, width = max(total, len(numbers)), numbers[0]
    places = [step * width + place for step, number in enumerate(numbers) for place in range(number)]
    empty = data.new_full((num_steps * width, *data.shape[1:]), padding)
    padded = empty.index_copy(0, torch.tensor(places), data).view(num_steps, width, *data.shape[1:])
    lengths = torch.tensor([sum(number > place for number in numbers) for place in range(width)])
    return padded.transpose(0, 1) if is_batch_first else padded, lengths


def _known(intercept: Any, sizes: torch.Tensor, asked_by: str) -> torch.Tensor:
    with no_function_modes():
        found: torch.Tensor = intercept.values.of(sizes, asked_by)
    return found


PACKED_SEQUENCES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu), _layer),
    PACK_PADDED_SEQUENCE: _packed,
    PAD_PACKED_SEQUENCE: _padded,
}
