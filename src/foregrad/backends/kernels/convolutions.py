"""Convolutions: what calls the kernel of `winograd.py` in compiled code, where that is quicker than torch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.passes.convolution_sizes import is_quicker

#: With fewer than 16 squares of four by four pixels, it takes longer to spread a weight than is gained. And sums of
#: fewer than 64 channels, or for a weight of 32 squares, are so exact in torch that ours would be more than four times
#: as far from the exact ones.
_LEAST_LARGE_SQUARES, _LEAST_CHANNELS = (16, 16, 32), 64

_FORWARD, _GRADIENT_OF_IMAGE, _GRADIENT_OF_WEIGHT = range(3)


def square_size(what: int, count: int, height: int, width: int, ins: int, outs: int) -> int:
    """The pixels of a square's side: four where that takes fewer multiplications and is worth it, else two."""
    squares = {size: count * -(-height // size) * -(-width // size) for size in (2, 4)}
    are_many = squares[4] >= _LEAST_LARGE_SQUARES[what]
    are_long = what == _GRADIENT_OF_WEIGHT or (ins, outs)[what] >= _LEAST_CHANNELS
    return 4 if are_many and are_long and 36 * squares[4] < 16 * squares[2] else 2


@dataclass(frozen=True, eq=False)
class Convolutions:
    """Convolutions by our kernel, or by torch's where that is as good."""

    run: Callable[..., None]

    def forward(
        self,
        image: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> torch.Tensor:
        """As `aten.convolution`."""
        options = (stride, padding, dilation, transposed, output_padding, groups)
        if not (is_quicker(image, weight, *options) and _are_channels_last(image, weight)):
            return torch.convolution(image, weight, bias, *options)
        result = _empty(image.shape[0], weight.shape[0], *image.shape[2:])
        self._run(_FORWARD, image, result, weight, bias)
        return result

    def backward(
        self,
        gradient: torch.Tensor,
        image: torch.Tensor,
        weight: torch.Tensor,
        bias_sizes: Sequence[int] | None,
        *rest: Any,
    ) -> tuple[torch.Tensor | None, ...]:
        """As `aten.convolution_backward`."""
        *options, mask = rest
        if not (is_quicker(image, weight, *options) and _are_channels_last(gradient, image, weight)):
            return torch.ops.aten.convolution_backward.default(gradient, image, weight, bias_sizes, *rest)
        of_image = _empty(*image.shape) if mask[0] else None
        of_weight = _empty(*weight.shape) if mask[1] else None
        if of_image is not None:
            self._run(_GRADIENT_OF_IMAGE, of_image, gradient, weight)
        if of_weight is not None:
            self._run(_GRADIENT_OF_WEIGHT, image, gradient, of_weight)
        return of_image, of_weight, gradient.sum((0, 2, 3)) if mask[2] else None

    def _run(
        self,
        what: int,
        image: torch.Tensor,
        result: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        count, ins, height, width = image.shape
        outs = result.shape[1]
        added = torch.zeros(max(ins, outs)) if bias is None else bias.contiguous()
        size = square_size(what, count, height, width, ins, outs)
        self.run(image, result, weight, added, size, what, count, height, width, ins, outs, torch.get_num_threads())


def _are_channels_last(*tensors: torch.Tensor) -> bool:
    return all(one.is_contiguous(memory_format=torch.channels_last) for one in tensors)


def _empty(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.float32, device="cpu", memory_format=torch.channels_last)
