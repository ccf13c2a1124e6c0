"""Tensors as the bytes of a safetensors file, and as views of such bytes.

The file begins with a length, then a header in JSON, then the data. Large tensors come first and the data begin at a
multiple of 64 bytes, so that in memory which does too they lie as torch would have laid them, and need no copy.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from foregrad.core.errors import CannotKeep
from foregrad.core.spec import Spec

_ALIGNMENT = 64


def tensors_to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Tensors as the bytes of a safetensors file."""
    for name, t in tensors.items():
        is_written_once = all(stride or size < 2 for size, stride in zip(t.shape, t.stride(), strict=True))
        if t.dtype not in _NAMES or not is_written_once:
            raise CannotKeep(
                f"a file cannot hold {name}, which is {Spec.of(t)}\nSave with weights=False, and load with `state`."
            )
    header: dict[str, Any] = {}
    pieces: list[Any] = []
    end = 0
    for name, t in sorted(tensors.items(), key=lambda item: (-item[1].nbytes, item[0])):
        dense = t.detach().resolve_conj().resolve_neg().cpu().contiguous()
        begin, end = end, end + dense.nbytes
        header[name] = {"dtype": _NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [begin, end]}
        pieces.append(ctypes.string_at(dense.data_ptr(), dense.nbytes))
    text = json.dumps(header).encode()
    text = text.ljust(-(-(8 + len(text)) // _ALIGNMENT) * _ALIGNMENT - 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *pieces])


def tensors_from_bytes(data: memoryview) -> dict[str, Tensor]:
    """The tensors of a safetensors file, as views of its bytes, which must be writable."""
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(bytes(data[8 : 8 + length]))
    return {name: _view(data[8 + length :], one) for name, one in header.items() if name != "__metadata__"}


def _view(data: memoryview, about: dict[str, Any]) -> Tensor:
    dtype, shape, (begin, end) = _DTYPES[about["dtype"]], about["shape"], about["data_offsets"]
    if begin == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data[begin:end], dtype=torch.uint8).view(dtype).reshape(shape)


def strided(dense: Tensor, stride: tuple[int, ...]) -> Tensor:
    """A tensor with these strides, as torch would have made it: the one that is given, if it is like that."""
    if dense.stride() == stride and dense.data_ptr() % _ALIGNMENT == 0:
        return dense
    return torch.empty_strided(dense.shape, stride, dtype=dense.dtype, device=dense.device).copy_(dense)


#: The dtypes of safetensors files.
_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "U16": torch.uint16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "I64": torch.int64,
    "U64": torch.uint64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
