"""Spec: what a tensor looks like, without its data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.size import Size, frozen_all, thawed, value_of
from foregrad.torch_private.tensors import is_zero_tensor

SHORT_DTYPES = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
    torch.complex64: "c64",
    torch.complex128: "c128",
}


def dtype_text(dtype: torch.dtype) -> str:
    """A dtype in a few letters: `f32`, `i64`, `bool`."""
    return SHORT_DTYPES.get(dtype, str(dtype).removeprefix("torch."))


@dataclass(frozen=True, slots=True)
class Spec:
    """Size, stride, dtype, device and whether a gradient is wanted; prints as `f32[8, 128]`.

    A size that varies between calls is a `Size`: `f32[tokens.0, 128]`.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    requires_grad: bool = False

    @staticmethod
    def of(tensor: torch.Tensor) -> Spec:
        return Spec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad)

    def frozen(self) -> Spec:
        """The same with torch's symbols as `Size`s."""
        return replace(self, shape=frozen_all(self.shape), stride=frozen_all(self.stride))

    def thawed(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The shape and the strides, with torch's symbols for sizes that vary."""
        return thawed(self.shape), thawed(self.stride)

    def plain(self) -> Spec:
        """The same with the sizes of the call that was captured."""
        return replace(self, shape=tuple(map(value_of, self.shape)), stride=tuple(map(value_of, self.stride)))

    @property
    def num_bytes(self) -> int:
        return self.extent * self.dtype.itemsize

    @property
    def extent(self) -> int:
        """Elements from the first to the last in memory."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def is_dense(self) -> bool:
        """Whether the elements fill their memory, each in a place of its own."""
        expected = 1
        for stride, size in sorted(
            ((stride, size) for size, stride in zip(self.shape, self.stride, strict=True) if size != 1),
            key=lambda pair: (value_of(pair[0]), value_of(pair[1])),
        ):
            if stride != expected:
                return 0 in self.shape
            expected *= size
        return True

    @property
    def is_contiguous(self) -> bool:
        return self.stride == contiguous_stride(self.shape) or 0 in self.shape

    def matches(self, other: object) -> bool:
        """Whether a tensor that looks like the other can stand for one that looks like this; gradients aside."""
        if not isinstance(other, Spec):
            return False
        sizes, others = (*self.shape, *self.stride), (*other.shape, *other.stride)
        alike = len(self.shape) == len(other.shape) and (self.dtype, self.device) == (other.dtype, other.device)
        return alike and all(a == b or isinstance(a, Size) for a, b in zip(sizes, others, strict=True))

    def __str__(self) -> str:
        text = f"{dtype_text(self.dtype)}[{', '.join(map(str, self.shape))}]"
        if not self.is_contiguous:
            text += f" stride ({', '.join(map(str, self.stride))})"
        if self.device.type != "cpu":
            text += f" {self.device}"
        return text


@dataclass(frozen=True, slots=True)
class NumberSpec(Spec):
    """A number of Python's; where a compiler wants a tensor, it is one without dimensions, in double precision."""

    @staticmethod
    def of(value: object) -> Spec | str:  # type: ignore[override]
        """The spec of a number; the name of its type, for anything else."""
        if not is_number(value):
            return type(value).__name__
        return NumberSpec((), (), torch.float64 if type(value) is float else torch.int64)

    def matches(self, other: object) -> bool:
        return isinstance(other, NumberSpec) and self.dtype == other.dtype

    def __str__(self) -> str:
        return "float" if self.dtype == torch.float64 else "int"


@dataclass(frozen=True, slots=True)
class SizeSpec(NumberSpec):
    """An integer that each call computes from the sizes of its arguments: `size` says how."""

    size: Size | None = None

    @staticmethod
    def make(size: Size) -> SizeSpec:
        return SizeSpec((), (), torch.int64, size=size)


def symbols_in(spec: Spec | None) -> tuple[Size, ...]:
    """The sizes of single dimensions that a spec speaks of."""
    if spec is None:
        return ()
    sizes = [spec.size] if isinstance(spec, SizeSpec) else [*spec.shape, *spec.stride]
    found = [symbol for size in sizes if isinstance(size, Size) for symbol in size.symbols]
    return tuple({repr(symbol): symbol for symbol in found}.values())  # two that are equal here have two names


def in_order(size: Size) -> tuple[int, str]:
    """By which sizes of dimensions are sorted: `dim2` comes before `dim10`."""
    return len(repr(size)), repr(size)


def is_number(value: object) -> bool:
    """Whether a value is one of Python's numbers that can be an input; flags are not."""
    return type(value) in (int, float)


@dataclass(frozen=True, slots=True)
class TokenSpec(Spec):
    """What stands for the state of a generator or of the world: it holds no data."""

    kind: str = "token"

    @staticmethod
    def make(kind: str = "token", device: str = "cpu") -> TokenSpec:
        return TokenSpec((), (), torch.bool, torch.device(device), kind=kind)

    def matches(self, other: object) -> bool:
        return other == "NoneType"

    def __str__(self) -> str:
        return self.kind


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for size in reversed(shape):
        stride.append(step)
        step *= size if isinstance(size, Size) else max(size, 1)
    return tuple(reversed(stride))


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether the memory of a tensor holds not its data but their negatives or conjugates, or nothing."""
    return tensor.is_neg() or tensor.is_conj() or is_zero_tensor(tensor)


def restrided(tensor: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    """A tensor with these strides and all of its data in memory: itself, or a copy."""
    if tensor.stride() == stride and not is_lazy(tensor):
        return tensor
    made = torch.empty_strided(tensor.size(), stride, dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)
