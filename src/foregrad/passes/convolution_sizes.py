"""Convolution sizes: for which convolutions our kernel, or a channels-last layout, is quicker than torch's own."""

from __future__ import annotations

from typing import Any

import torch

#: Channels are worked on in panels, and below so many squares of two by two pixels the weight takes most of the time.
#: From 32 channels and 16 squares on, every size that was measured is quicker than with oneDNN (one thread, batches of
#: 1 to 32, images of 4 to 56). With AVX2 and squares of two by two pixels alone, the convolution and the gradient of
#: its image are 1.06 to 2.2 times as quick, that of the weight 1.5 to 4.5 times; with AVX-512 and squares of either
#: size 1.1 to 3.4 and 1.6 to 9 times.
_CHANNELS, _LEAST_SQUARES = 32, 16

#: A weight that fits in no cache (four megabytes) has to be worth the time that it takes to spread it.
_LARGE_WEIGHT, _LEAST_SQUARES_OF_LARGE = 1 << 20, 32

#: Below so many pixels of a result, it takes longer to lay out a weight of so many numbers with its channels last, in
#: forward and in backward, and its gradient back, than torch's kernels gain by that: up to four times as long
#: (`benchmarks/convolutions.py`; kernels of one pixel are laid out so already).
_LEAST_PIXELS, _SMALL_WEIGHT = 512, 1 << 15


def is_quicker(image: torch.Tensor, weight: torch.Tensor, *options: Any) -> bool:
    """Whether a convolution is one with kernels of three by three, of step one, that is worth it. The options are those
    of aten: stride, padding, dilation, transposed, output_padding, groups."""
    stride, padding, dilation, is_transposed, _, groups = options
    if image.ndim != 4 or tuple(weight.shape[2:]) != (3, 3) or is_transposed or groups != 1:
        return False
    if any(one.dtype is not torch.float32 or one.device.type != "cpu" for one in (image, weight)):
        return False
    if any(number != 1 for numbers in (stride, padding, dilation) for number in numbers):
        return False
    count, _, height, width = image.shape
    squares = count * ((height + 1) // 2) * ((width + 1) // 2)
    are_panels = all(channels % _CHANNELS == 0 for channels in weight.shape[:2])
    least = _LEAST_SQUARES_OF_LARGE if weight.numel() >= _LARGE_WEIGHT else _LEAST_SQUARES
    return are_panels and min(height, width) > 1 and squares >= least


def gains_by_channels_last(pixels: int, image: torch.Tensor, weight: torch.Tensor, *options: Any) -> bool:
    """Whether a convolution with a result of so many pixels, of all images together, is worth another layout."""
    is_small = weight.numel() <= _SMALL_WEIGHT or weight.shape[2:].numel() == 1
    return is_small or pixels >= _LEAST_PIXELS or is_quicker(image, weight, *options)
