"""Policy: how tensors that are saved for backward are kept, once for each piece of memory.

with save_as(torch.bfloat16) as policy:
    loss = model(x)       # each op that saves a tensor calls policy.pack_hook(tensor) -> Packed
loss.backward()           # each node that needs it calls policy.unpack_hook(packed) -> tensor
print(policy.report)
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from foregrad.core.spec import Spec, contiguous_stride
from foregrad.graph.pieces import Geometry, Piece, is_plain, of_parameter, piece_of
from foregrad.process.forks import lock
from foregrad.torch_private.autograd import current_autograd_node, version_of
from foregrad.torch_private.autograd_graph import WeakStorage, parts, storage_id

#: Nodes whose op writes to a tensor after autograd has saved it: `rrelu` in training, its noise.
_FILL_WHAT_THEY_SAVED = frozenset({"RreluWithNoiseBackward0", "RreluWithNoiseBackward1"})


@dataclass(frozen=True)
class Report:
    """What a policy has done so far; sizes are in bytes."""

    tensors: int  # that were saved under it
    saved: int  # what these amount to, each counted as often as it was saved
    left_alone: int  # how much of this is kept as it was: parameters, small tensors, what is where it belongs
    kept: int  # what its copies take now, wherever they are
    moved: int  # what was copied, away and back
    seconds: float  # spent in doing so, as the host sees it

    def __str__(self) -> str:
        return (
            f"{self.tensors} tensors of {self.saved:,} bytes saved, {self.left_alone:,} left alone; "
            f"{self.kept:,} bytes kept now, {self.moved:,} moved in {self.seconds:.3f} s"
        )


class Policy(saved_tensors_hooks):
    """Base of the policies: a context under which saved tensors are kept in another way. The innermost one counts.

    A kind of policy is `store` and `load`. They get the elements of one piece of memory in a row, however many tensors
    are views of it, and the piece comes to them once. Parameters, and tensors of less than `min_bytes`, are left alone.
    """

    where = ""  # what the copies are kept on; "" if on the device of the tensor
    prefetch = 0  # how many copies are fetched ahead of the one that is asked for

    def __init__(self, *, min_bytes: int = 0) -> None:
        self.min_bytes = min_bytes
        self._lock = lock()
        self._copies: weakref.WeakValueDictionary[Any, MemoryCopy] = weakref.WeakValueDictionary()
        self._latest: weakref.ref[MemoryCopy] | None = None
        self._num_tensors = self._saved = self._left_alone = self._moved = 0
        self._seconds = 0.0

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether this policy has anything to do for a tensor, if that is plain and no parameter."""
        return True

    def store(self, elements: torch.Tensor) -> tuple[Any, int]:
        """Whatever `load` needs, and how many bytes it takes."""
        raise NotImplementedError

    def load(self, copy: MemoryCopy) -> torch.Tensor:
        """The elements again, with their dtype and on their device."""
        raise NotImplementedError

    def load_ahead(self, copy: MemoryCopy) -> Any:
        """Begin to load: `.result()` of what is returned waits for the elements."""
        raise NotImplementedError

    @property
    def report(self) -> Report:
        """Bytes kept and moved, and the time that it took."""
        with self._lock:
            kept = sum(copy.num_bytes for copy in list(self._copies.values()))
            return Report(self._num_tensors, self._saved, self._left_alone, kept, self._moved, self._seconds)

    def __enter__(self) -> Policy:  # type: ignore[override]
        super().__enter__()
        return self

    def pack_hook(self, tensor: torch.Tensor) -> Packed:
        """Called by torch for each tensor that an op saves."""
        num_bytes = tensor.numel() * tensor.element_size()
        is_left = num_bytes < self.min_bytes or not self.takes(tensor) or of_parameter(tensor) or not is_plain(tensor)
        with self._lock:
            self._num_tensors += 1
            self._saved += num_bytes
            if is_left:
                self._left_alone += num_bytes
                return KeptTensor(tensor)
            start = perf_counter()
            packed = self._pack(tensor)
            self._seconds += perf_counter() - start
        return packed

    def unpack_hook(self, packed: Packed) -> torch.Tensor:
        """Called by torch when a node needs a tensor that it has saved."""
        if isinstance(packed, KeptTensor):
            return packed.unpack()
        node = current_autograd_node()
        if node is not None and node.name() in _FILL_WHAT_THEY_SAVED:
            raise RuntimeError(
                f"{node.name()} saves a tensor that its op fills afterwards, so that a copy holds nothing: "
                f"leave the op outside of `{type(self).__name__}`"
            )
        start = perf_counter()
        with torch.no_grad(), self._lock:
            tensor = packed.unpack()
            self._seconds += perf_counter() - start
        return tensor

    def _pack(self, tensor: torch.Tensor) -> Packed:
        with torch.no_grad():
            piece = piece_of(tensor, self._copies.__contains__)
            copy = self._copies.get(piece.key)
            if copy is None:
                copy = self._copies[piece.key] = self._copy(piece)
        return PackedView(self, copy, piece.geometry)

    def _copy(self, piece: Piece) -> MemoryCopy:
        elements = piece.elements()
        data, num_bytes = self.store(elements)
        copy = MemoryCopy(data, num_bytes, piece.source, elements)
        copy.before, self._latest = self._latest, weakref.ref(copy)
        self._moved += elements.numel() * elements.element_size()
        return copy

    def restore(self, copy: MemoryCopy) -> torch.Tensor:
        """The elements of a copy; tensors that are in use at the same time share them."""
        elements = copy.in_use()
        if elements is None:
            elements = copy.ahead.result() if copy.ahead is not None else self.load(copy)
            copy.ahead = None
            copy.remember(elements)
            self._moved += elements.numel() * elements.element_size()
        self._fetch_ahead(copy)
        return elements

    def _fetch_ahead(self, copy: MemoryCopy) -> None:
        """What was saved just before is asked for next."""
        for _ in range(self.prefetch):
            previous = copy.before() if copy.before is not None else None
            if previous is None:
                return
            copy = previous
            if copy.ahead is None and copy.in_use() is None:
                copy.ahead = self.load_ahead(copy)


class MemoryCopy:
    """What a policy keeps of one piece of memory."""

    __slots__ = (
        "__weakref__",
        "_restored",
        "ahead",
        "before",
        "data",
        "device",
        "dtype",
        "num_bytes",
        "size",
        "source",
    )

    def __init__(self, data: Any, num_bytes: int, source: WeakStorage, elements: torch.Tensor) -> None:
        self.data, self.num_bytes = data, num_bytes
        self.source = source  # keeps the id of the storage, which is in the key of the piece, from being used again
        self.size, self.dtype, self.device = elements.numel(), elements.dtype, elements.device
        self.ahead: Any = None
        self.before: weakref.ref[MemoryCopy] | None = None
        self._restored: tuple[WeakStorage, int] | None = None

    def remember(self, elements: torch.Tensor) -> None:
        if (elements.numel(), elements.dtype, elements.device) != (self.size, self.dtype, self.device):
            given, kept = Spec.of(elements), Spec((self.size,), (1,), self.dtype, self.device)
            raise RuntimeError(f"a saved tensor is unpacked as {given}, but was packed from {kept}")
        self._restored = WeakStorage(elements), int(elements.storage_offset())

    def in_use(self) -> torch.Tensor | None:
        """The elements, if someone still has them from the last time."""
        storage = self._restored[0]() if self._restored is not None else None
        if storage is None or self._restored is None:
            return None
        empty = torch.empty(0, dtype=self.dtype, device=self.device)
        return empty.set_(storage, self._restored[1], (self.size,), (1,))


class Packed:
    """What stands in the graph for a tensor that was saved."""

    __slots__ = ()

    @property
    def spec(self) -> Spec:
        """What the tensor looks like that it stands for."""
        raise NotImplementedError

    @property
    def policy(self) -> str:
        """Who packed it; "" if it is kept as it was."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The device that the memory is on, or `disk`."""
        raise NotImplementedError

    def memory(self) -> dict[Any, int]:
        """Bytes of each piece of memory that is kept, by what tells these apart."""
        raise NotImplementedError

    def unpack(self) -> torch.Tensor:
        """The tensor."""
        raise NotImplementedError


class KeptTensor(Packed):
    """A saved tensor as it was, for as long as nobody writes to it: torch checks no version where there are hooks."""

    __slots__ = ("tensor", "version")
    policy = ""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor = tensor.detach()  # the tensor itself would own its node, which owns this
        self.version = None if tensor.is_inference() else version_of(tensor)

    @property
    def spec(self) -> Spec:
        return spec_of(self.tensor)

    @property
    def place(self) -> str:
        return str(self.tensor.device)

    def memory(self) -> dict[Any, int]:
        return memory_of([self.tensor])

    def unpack(self) -> torch.Tensor:
        tensor = self.tensor
        if self.version is not None and self.version != version_of(tensor):
            raise RuntimeError(
                f"a tensor that is needed for a gradient, {self.spec}, has been modified by an inplace operation: "
                f"it was saved at version {self.version} and is at version {version_of(tensor)}. "
                "Write to a clone of it, or run both passes inside `foregrad.graph.allow_mutation_on_saved_tensors()`."
            )
        return tensor


class PackedView(Packed):
    """A saved tensor as a view of a copy."""

    __slots__ = ("copy", "geometry", "owner")

    def __init__(self, owner: Policy, copy: MemoryCopy, geometry: Geometry) -> None:
        self.owner, self.copy, self.geometry = owner, copy, geometry

    @property
    def spec(self) -> Spec:
        return Spec(*self.geometry[:2], self.copy.dtype, self.copy.device)

    @property
    def policy(self) -> str:
        return type(self.owner).__name__

    @property
    def place(self) -> str:
        return self.owner.where or str(self.copy.device)

    def memory(self) -> dict[Any, int]:
        return {self.copy: self.copy.num_bytes}

    def unpack(self) -> torch.Tensor:
        return self.owner.restore(self.copy).as_strided(*self.geometry)


def spec_of(tensor: torch.Tensor) -> Spec:
    """What a tensor looks like; sparse ones have no strides and look contiguous."""
    if tensor.layout == torch.strided:
        return Spec.of(tensor)
    size = tuple(tensor.shape)
    return Spec(size, contiguous_stride(size), tensor.dtype, tensor.device, tensor.requires_grad)


def memory_of(tensors: list[torch.Tensor]) -> dict[Any, int]:
    """The storages of some tensors, with the bytes of each."""
    return {storage_id(part): part.untyped_storage().nbytes() for tensor in tensors for part in parts(tensor)}
