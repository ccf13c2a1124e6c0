"""The policies: where and in which form tensors that are saved for backward are kept."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import torch

from foregrad.graph.policy import MemoryCopy, Policy, memory_of
from foregrad.torch_private.autograd_graph import storage_id
from foregrad.torch_private.pytree import tree_leaves, tree_map_only

#: What bfloat16, float32 and float64 can hold, and narrower dtypes cannot.
_LARGE = 1e38


class save_on_cpu(Policy):
    """Saved tensors are moved to the CPU, and back when backward needs them.

    With `pin_memory` both ways are asynchronous, and while a tensor is in use the `prefetch` ones that were saved
    before it are already on their way, on a stream of their own. What is on the CPU already stays where it is.
    """

    where = "cpu"

    def __init__(
        self, pin_memory: bool = False, device_type: str = "cuda", *, min_bytes: int = 0, prefetch: int = 2
    ) -> None:
        super().__init__(min_bytes=min_bytes)
        device = torch.get_device_module(device_type)
        self.pin_memory = pin_memory and device.is_available()
        self.prefetch = prefetch if self.pin_memory else 0
        self._device_type, self._device = device_type, device
        self._streams: dict[torch.device, Any] = {}

    def takes(self, tensor: torch.Tensor) -> bool:
        return not tensor.is_cpu

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        pinned = self.pin_memory and elements.device.type == self._device_type
        host = torch.empty(elements.shape, dtype=elements.dtype, device="cpu", pin_memory=pinned)
        host.copy_(elements, non_blocking=pinned)
        return host, host.nbytes

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        return copy.data.to(copy.device, non_blocking=self.pin_memory)

    def load_ahead(self, copy: MemoryCopy) -> Any:
        stream = self._streams.get(copy.device)
        if stream is None:
            stream = self._streams[copy.device] = self._device.Stream(copy.device)
        stream.wait_stream(self._device.current_stream(copy.device))  # the way to the CPU is behind it
        with self._device.stream(stream):
            return _OnItsWay(self.load(copy), stream.record_event(), self._device)


class _OnItsWay:
    """Elements that another stream is copying."""

    def __init__(self, elements: torch.Tensor, arrival: Any, device: Any) -> None:
        self._elements, self._arrival, self._device = elements, arrival, device

    def result(self) -> torch.Tensor:
        stream = self._device.current_stream(self._elements.device)
        stream.wait_event(self._arrival)
        self._elements.record_stream(stream)
        return self._elements


class save_on_disk(Policy):
    """Saved tensors are written to files in a folder of their own below `folder`, and read when backward needs them.

    The `prefetch` ones that were saved before the one in use are read ahead by a thread. A file goes when nothing needs
    its tensor any more, the folder with the policy and its graphs.
    """

    where = "disk"

    def __init__(self, folder: str | os.PathLike[str], *, min_bytes: int = 0, prefetch: int = 2) -> None:
        super().__init__(min_bytes=min_bytes)
        self.prefetch = prefetch
        os.makedirs(folder, exist_ok=True)
        self._folder = Path(tempfile.mkdtemp(prefix="saved-", dir=folder))
        self._names = count()
        weakref.finalize(self, _remove, self._folder, os.getpid())

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        file = _File(self._folder / str(next(self._names)))
        num_bytes = file.path.write_bytes(_bytes_of(elements.cpu()))
        return file, num_bytes

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        return copy.data.read(copy.size, copy.dtype).to(copy.device)

    def load_ahead(self, copy: MemoryCopy) -> Any:
        # The thread has the file, not the copy: this would keep its own future.
        return _InFile(_reader(os.getpid()).submit(copy.data.read, copy.size, copy.dtype), copy.device)


@cache
def _reader(process: int) -> ThreadPoolExecutor:
    """The thread that reads ahead; a forked process has none of its parent's threads."""
    return ThreadPoolExecutor(1, "foregrad-read-ahead")


class _File:
    """A file that goes with this object."""

    def __init__(self, path: Path) -> None:
        self.path = path
        weakref.finalize(self, _remove, path, os.getpid())

    def read(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        elements = torch.empty(size, dtype=dtype)
        buffer = _bytes_of(elements)
        with self.path.open("rb", buffering=0) as file:
            while buffer:
                num_read = file.readinto(buffer)
                if not num_read:
                    raise RuntimeError(f"{self.path} holds {len(buffer)} bytes less than were written to it")
                buffer = buffer[num_read:]
        return elements


def _bytes_of(elements: torch.Tensor) -> memoryview:
    return memoryview(elements.view(torch.uint8).numpy())  # type: ignore[arg-type]


class _InFile:
    """Elements that a thread is reading."""

    def __init__(self, reading: Any, device: torch.device) -> None:
        self._reading, self._device = reading, device

    def result(self) -> torch.Tensor:
        return self._reading.result().to(self._device)


def _remove(path: Path, process: int) -> None:
    """Remove a file or folder; a forked process leaves those of its parent alone."""
    if os.getpid() != process:
        return
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class save_as(Policy):
    """Saved tensors of a wider floating-point dtype are kept in `dtype`; gradients are as exact as that.

    Tensors with an element that would become infinite are kept as they are.
    """

    def __init__(self, dtype: torch.dtype, *, min_bytes: int = 0) -> None:
        super().__init__(min_bytes=min_bytes)
        if not dtype.is_floating_point:
            raise TypeError(f"save_as takes a floating-point dtype, given {dtype}")
        self.dtype = dtype

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and tensor.dtype.itemsize > self.dtype.itemsize

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        kept = elements.to(self.dtype)
        if torch.finfo(self.dtype).max < _LARGE and not kept.isfinite().all():
            kept = elements.clone()
        return kept, kept.nbytes

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        return copy.data.to(copy.dtype)


class save_quantized(Policy):
    """Saved floating-point tensors are kept with 8, 4, 2 or 1 bits an element, between the least and the greatest value
    of each block of 128.

    Where the least value is zero, as after a ReLU, nothing else becomes zero: whether an element was positive is kept.
    Tensors of less than a block are left alone, and those with an infinite value or a nan are kept as they are.
    """

    block = 128

    def __init__(self, bits: int = 8, *, min_bytes: int = 0) -> None:
        super().__init__(min_bytes=min_bytes)
        if bits not in (1, 2, 4, 8):
            raise ValueError(f"save_quantized takes 1, 2, 4 or 8 bits, given {bits}")
        self.bits = bits

    def takes(self, tensor: torch.Tensor) -> bool:
        return tensor.is_floating_point() and tensor.numel() >= self.block

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        rest = -elements.numel() % self.block
        padded = torch.cat([elements, elements[-1:].expand(rest)]) if rest else elements
        rows = padded.view(-1, self.block).float()
        low, high = rows.aminmax(dim=1, keepdim=True)
        if not (low.isfinite() & high.isfinite()).all():
            return elements.clone(), elements.nbytes
        levels = 2**self.bits - 1
        step = high / levels - low / levels  # the difference itself may be infinite
        scale = torch.where(step > torch.finfo(step.dtype).tiny, 1 / step, 0)
        codes = (rows - low).mul_(scale).round_().clamp_(0, levels).to(torch.uint8)
        from_zero = low == 0
        if from_zero.any():
            codes = torch.where(from_zero & (rows > 0) & (codes == 0), 1, codes)
        data = self._squeeze(codes), low, step
        return data, sum(part.nbytes for part in data)

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        if isinstance(copy.data, torch.Tensor):
            return copy.data
        codes, low, step = copy.data
        rows = torch.addcmul(low, self._spread(codes), step)
        return rows.flatten()[: copy.size].to(copy.dtype)

    def _squeeze(self, codes: torch.Tensor) -> torch.Tensor:
        """Several codes in a byte."""
        together = 8 // self.bits
        if together == 1:
            return codes
        columns = codes.view(codes.shape[0], -1, together)
        packed = columns[..., 0].clone()
        for place in range(1, together):
            packed |= columns[..., place] << (place * self.bits)
        return packed

    def _spread(self, packed: torch.Tensor) -> torch.Tensor:
        if self.bits == 8:
            return packed.float()
        shifts = torch.arange(0, 8, self.bits, dtype=torch.uint8, device=packed.device)
        codes = (packed.unsqueeze(-1) >> shifts) & (2**self.bits - 1)
        return codes.flatten(1).float()


class save_with(Policy):
    """Saved tensors are kept as `pack` makes them, and `unpack` makes them again.

    Both see the elements of a piece of memory in one row. What `pack` returns may be anything; tensors and bytes in it
    are counted.
    """

    def __init__(
        self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor], *, min_bytes: int = 0
    ) -> None:
        super().__init__(min_bytes=min_bytes)
        self._pack_elements, self._unpack_elements = pack, unpack

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        data = self._pack_elements(elements)
        memory = storage_id(elements)  # which may be written to before backward runs
        data = tree_map_only(torch.Tensor, lambda t: t.clone() if memory in memory_of([t]) else t, data)
        return data, sum(_size(leaf) for leaf in tree_leaves(data))

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        return self._unpack_elements(copy.data)


def _size(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return len(value) if isinstance(value, bytes | bytearray | memoryview) else 0
