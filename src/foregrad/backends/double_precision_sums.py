"""Means, variances and batch norms with sums in double precision, as eager has them, for compilers.

Inductor takes the mean and the variance of some thousand numbers in single precision, by Welford's method: up to a
hundred times as far from the exact ones as eager's, and in more time. A signal close to zero then has the other sign,
its gradient is there or not, and the statistics of a batch norm drift away from eager's step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor


def _batch_norm(op: Any) -> Callable[..., Any]:
    def batch_norm(
        image: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        training: bool,
        momentum: float,
        eps: float,
    ) -> Any:
        writes = running_mean is not None and op is aten.native_batch_norm.default
        if not training or writes or not _is_single(image):
            return op(image, weight, bias, running_mean, running_var, training, momentum, eps)
        dims, count = _around_channels(image), image.numel() // image.shape[1]
        mean, squares = _moments(image, dims, count)
        scale = (squares / count + eps).rsqrt()
        result = (image - mean.float()) * scale.float()
        for factor, apply in ((weight, torch.mul), (bias, torch.add)):
            result = result if factor is None else apply(result, _beside(factor, image))
        means, variances = mean.squeeze(dims), squares.squeeze(dims) / (count - 1)
        return (
            result,
            means.float(),
            scale.squeeze(dims).float(),
            *(
                _moved(*pair, momentum)
                for pair in ((running_mean, means), (running_var, variances))
                if pair[0] is not None
            ),
        )

    return batch_norm


def _moved(running: Any, new: Tensor, momentum: float) -> Tensor:
    moved: Tensor = (momentum * new + (1 - momentum) * running).to(running.dtype)
    return moved


def _batch_norm_backward(
    gradient: Tensor,
    image: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    scale: Tensor | None,
    training: bool,
    eps: float,
    mask: Sequence[bool],
) -> Any:
    if not training or mean is None or scale is None or not _is_single(image):
        return aten.native_batch_norm_backward.default(
            gradient, image, weight, running_mean, running_var, mean, scale, training, eps, mask
        )
    dims, count = _around_channels(image), image.numel() // image.shape[1]
    centred = image - _beside(mean, image)
    total = gradient.double().sum(dims)
    along = (gradient.double() * centred).sum(dims)
    slope = (along / count * scale.double().square()).float()
    factor = scale if weight is None else scale * weight
    of_image = gradient - centred * _beside(slope, image) - _beside((total / count).float(), image)
    return (
        of_image * _beside(factor, image) if mask[0] else None,
        (along * scale).float() if mask[1] else None,
        total.float() if mask[2] else None,
    )


def _variance(op: Any, result: Callable[[Tensor, Tensor], Any]) -> Callable[..., Any]:
    def variance(
        values: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
    ) -> Any:
        if not _is_single(values):
            return op(values, dim, correction=correction, keepdim=keepdim)
        dims = [d % values.ndim for d in dim] if dim and values.ndim else list(range(values.ndim))
        count = 1
        for d in dims:
            count *= values.shape[d]
        mean, squares = _moments(values, dims, count)
        found = squares / max(0, count - (1 if correction is None else correction)), mean
        return result(*(one if keepdim else one.squeeze(dims) for one in found))

    return variance


#: Ops, and functions that compute the same.
IN_DOUBLE: dict[Any, Callable[..., Any]] = {
    aten._native_batch_norm_legit_functional.default: _batch_norm(aten._native_batch_norm_legit_functional.default),
    aten.native_batch_norm.default: _batch_norm(aten.native_batch_norm.default),
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.var.correction: _variance(aten.var.correction, lambda var, mean: var.float()),
    aten.std.correction: _variance(aten.std.correction, lambda var, mean: var.sqrt().float()),
    aten.var_mean.correction: _variance(aten.var_mean.correction, lambda var, mean: (var.float(), mean.float())),
    aten.std_mean.correction: _variance(aten.std_mean.correction, lambda var, mean: (var.sqrt().float(), mean.float())),
}


def _moments(values: Tensor, dims: list[int], count: int) -> tuple[Tensor, Tensor]:
    """The mean, and the sum of the squares of what differs from it."""
    mean = values.double().sum(dims, keepdim=True) / count
    return mean, (values.double() - mean).square().sum(dims, keepdim=True)


def _is_single(values: Tensor) -> bool:
    return values.dtype is torch.float32 and values.device.type == "cpu" and values.numel() > 0


def _around_channels(image: Tensor) -> list[int]:
    return [0, *range(2, image.ndim)]


def _beside(values: Tensor, image: Tensor) -> Tensor:
    """One value for each channel, as they stand in an image."""
    return values.view(-1, *(1 for _ in range(2, image.ndim)))
