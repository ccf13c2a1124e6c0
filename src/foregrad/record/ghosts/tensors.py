"""Tensors: the ghosts of a recording, and the alias that each of them stands for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.history import is_flagged
from foregrad.core.size import frozen
from foregrad.core.wrapper_subclass import is_wrapper, parts
from foregrad.record.ghosts.devices import Device
from foregrad.record.ghosts.storages import StorageRecord, StorageTable
from foregrad.record.ghosts.table import GhostTable
from foregrad.record.ops import Alias, Op, Storage, geometry_of
from foregrad.record.origins import where
from foregrad.record.symbols.dimensions import Sizes
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.tensors import give_memory, storage_key, take_memory, view_base

_tables = threading.local()


class SparseOperand(CaptureError):
    """An op takes a sparse tensor, which has no alias."""


class GhostTensors:
    """Ghosts by their identity, and their memory. `lift` is asked for a ghost when a real tensor turns up."""

    def __init__(self, lift: Callable[[torch.Tensor], torch.Tensor], sizes: Sizes | None) -> None:
        if not hasattr(_tables, "ghosts"):
            _tables.ghosts = GhostTable()
        self.sizes = sizes
        self.table: GhostTable = _tables.ghosts if sizes is None else GhostTable(sizes.mode)
        self._lift = lift
        self.device = Device()
        self.memory = StorageTable()
        self.objects: list[torch.Tensor] = []
        self._alias_of: dict[int, Alias] = {}
        self._storage_of: dict[int, Storage] = {}
        self._num_aliases = 0
        self.has_memory = False
        self.unlisted: list[torch.Tensor] = []  # ghosts of which no op knows
        self.shown: set[Storage] = set()  # what NumPy has arrays of
        self._moved: list[tuple[torch.Tensor, int, CaptureError]] = []

    def give_memory(self) -> None:
        """Let every ghost be read, though nobody knows what is in it: there are ghosts in the frames of errors, and in
        what a capture leaves, and whoever shows these would crash."""
        for storage in self._on_cpu() if not self.has_memory else ():
            give_memory(storage)
        self.has_memory = True

    @contextmanager
    def without_memory(self) -> Iterator[None]:
        """Let no ghost be read for a while."""
        had_memory, self.has_memory = self.has_memory, False
        with no_dispatch_modes():
            for storage in self._on_cpu() if had_memory else ():
                take_memory(torch.empty(0, dtype=torch.uint8).set_(storage))
        try:
            yield
        finally:
            if had_memory:
                self.give_memory()

    def _on_cpu(self) -> list[torch.UntypedStorage]:
        """Storages that may have memory; those of fake tensors are on meta."""
        handles = [*(block.handle for block in self.memory.values()), *(one.untyped_storage() for one in self.unlisted)]
        return [handle for handle in handles if handle.device.type == "cpu" and handle.nbytes()]

    def shown_to_numpy(self, tensor: torch.Tensor, array: Any) -> Any:
        """An array of what a tensor holds. In eager they are one memory: neither may be written from now on."""
        array.flags.writeable = False
        self.shown.add(self.alias(tensor).storage)
        return array

    def check_not_shown(self, alias: Alias, where: Callable[[], str]) -> None:
        """Refuse a write to what NumPy has an array of."""
        if alias.storage in self.shown:
            raise CaptureError(
                f"the function writes to a tensor {alias.spec} after it was given to NumPy, where the array would "
                f"change too.\n{where()}\nGive NumPy a clone() of it."
            )

    def note_moved(self, tensor: torch.Tensor, before: Alias, after: Alias, where: str, ops: Sequence[Op]) -> None:
        """An input, a view of a tensor that the function was not given, gets other memory, in another geometry. Where
        autograd did not follow the last write to the old one, or change of its geometry, it looks for the view only
        now."""
        is_view = view_base(tensor) is not None and tensor.requires_grad and not is_flagged(tensor)
        changes = [
            (op.grad_enabled and changed.object == before.object)
            for op in ops
            for changed in (*op.writes, *([] if op.renames is None else [op.renames]))
            if changed.storage is before.storage
        ]
        was_written = bool(changes) and not changes[-1]
        is_moved = is_view and before.storage.kind == "input" and after.storage is not before.storage
        is_hidden = is_moved and self._alias_of.get(id(view_base(tensor))) is before
        if is_moved and (is_hidden or was_written) and after.geometry != before.geometry:
            error = CaptureError(
                f"the function gives an input {before.spec}, a view that needs a gradient, the memory of a "
                f"{after.spec}, and writes to it.\n{where}\nPass a copy, or also the tensor that it is a view of."
            )
            if was_written:
                raise error
            self._moved.append((tensor, version_of(tensor), error))

    def check_moved(self) -> None:
        """Refuse later writes to such an input: autograd then looks for it in that tensor, where it has never been."""
        for tensor, version, error in self._moved:
            if version_of(tensor) != version:
                raise error

    def knows(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is a ghost, or wraps one."""
        return id(tensor) in self._alias_of or (is_wrapper(tensor) and any(map(self.owns, parts(tensor))))

    def _swap(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if self.knows(tensor) else self._lift(tensor)

    def owns(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the memory of a ghost."""
        return storage_key(tensor) in self._storage_of

    def alias(self, tensor: torch.Tensor) -> Alias:
        """The alias that a ghost stands for; a tensor that autograd unpacked is known by its storage."""
        found = self._alias_of.get(id(tensor))
        if found is not None:
            return found
        if tensor.layout is not torch.strided:
            raise SparseOperand(
                f"the function uses a tensor of the layout {tensor.layout} where torch takes dense ones.\n{where('')}\n"
                "Use its to_dense(), or do this part outside."
            )
        storage = self._storage_of.get(storage_key(tensor))
        if storage is None and is_wrapper(tensor):
            raise CaptureError(
                f"an op of torch's takes a {type(tensor).__name__} past the class that carries out its ops, as a fused "
                f"optimizer does.\n{where('')}\nUse another form (fused=False), or a plain tensor."
            )
        if storage is None:
            return self.alias(self._lift(tensor))
        geometry = geometry_of(tensor, has_symbols=self.sizes is not None)
        for known in self.memory[storage].aliases:
            if (known.geometry, known.bits) == geometry:
                return self.take_for(tensor, known)
        return self.register(tensor, storage=storage)

    def take_for(self, tensor: torch.Tensor, alias: Alias) -> Alias:
        """Let a tensor stand for one that is known."""
        self._alias_of[id(tensor)] = alias
        self.objects.append(tensor)
        return alias

    def register(
        self,
        tensor: torch.Tensor,
        *,
        kind: str = "fresh",
        storage: Storage | None = None,
        parent: Alias | None = None,
        op: int | None = None,
        position: int = 0,
    ) -> Alias:
        """Give a ghost that was just made, or has just changed its geometry, its alias."""
        handle = tensor.untyped_storage()
        storage = storage or self._storage_of.get(storage_key(handle))
        if storage is None:
            device = self.device.shown(tensor.device)
            storage = Storage(len(self.memory), kind, frozen(handle.nbytes()), device, handle.device)
            self.memory[storage] = StorageRecord(handle)
            self._storage_of[storage_key(handle)] = storage
        before = self._alias_of.get(id(tensor))
        (size, stride, offset, dtype), bits = geometry_of(tensor, has_symbols=self.sizes is not None)
        meta = self.table.number_of((size, stride, dtype, bits, storage.device))
        number = before.object if before is not None else len(self.objects)
        index, self._num_aliases = self._num_aliases, self._num_aliases + 1
        alias = Alias(index, number, storage, size, stride, offset, dtype, bits, parent, op, position, meta)
        if before is None:
            self.objects.append(tensor)
        self.memory[storage].aliases.append(alias)
        self._alias_of[id(tensor)] = alias
        return alias
