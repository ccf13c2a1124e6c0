"""Tensors that are saved for backward may be written to: the old contents are kept before a write."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.graph import saved_tensors_hooks

from foregrad.graph.policy import KeptTensor
from foregrad.process.forks import lock
from foregrad.record.ghosts.table import written
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.autograd_graph import parts, storage_id
from foregrad.torch_private.dispatch import TorchDispatchMode
from foregrad.torch_private.ops import OpOverload

#: Ops that fill an argument after their node has saved it, for the new contents: which one.
_FILLED = {torch.ops.aten.rrelu_with_noise.default: 1, torch.ops.aten.rrelu_with_noise_.default: 1}


@dataclass
class Mutations:
    """What a context has copied so far, because it was written to."""

    copies: int = 0
    num_bytes: int = 0


@contextmanager
def allow_mutation_on_saved_tensors() -> Iterator[Mutations]:
    """Inside, tensors that were saved for backward may be written to: they are copied before the first write.

    A write is known by the memory that it goes to, whatever view it is made through. Contexts may be nested. Backward
    may run inside or after; what is written to after the context, and is not copied by then, is refused as without it.
    """
    mutations = Mutations()
    with saved_tensors_hooks(_pack, _Held.unpack), _CopyBeforeWrite(mutations):
        yield mutations


class _Held(KeptTensor):
    """A saved tensor that watches its memory."""

    __slots__ = ("__weakref__", "_storages")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storages: tuple[int, ...] = ()
        super().__init__(tensor)
        seen = parts(self.tensor)
        if not seen:  # nobody can say when memory is written that cannot be seen
            self.copy()
        self._storages = tuple({storage_id(part) for part in seen})
        _watched.add(self, self._storages)

    def copy(self) -> int:
        """Part from the memory; how many bytes this takes."""
        if self.version != _version_of(self.tensor):
            return 0  # someone has written to it outside of any context: too late, and `unpack` says so
        with torch.no_grad():
            self.tensor = self.tensor.clone()
        self.version = _version_of(self.tensor)
        _watched.remove(id(self), self._storages)
        return self.tensor.numel() * self.tensor.element_size()

    def __del__(self) -> None:
        _watched.remove(id(self), self._storages)


class _Watched:
    """The held tensors of all threads, by the memory that they are in."""

    def __init__(self) -> None:
        self._lock = lock()  # a held tensor may be freed, and removed, at any moment
        self._by_storage: dict[int, dict[int, weakref.ref[_Held]]] = {}

    def add(self, held: _Held, storages: Iterable[int]) -> None:
        with self._lock:
            for storage in storages:
                self._by_storage.setdefault(storage, {})[id(held)] = weakref.ref(held)

    def remove(self, number: int, storages: Iterable[int]) -> None:
        with self._lock:
            for storage in storages:
                others = self._by_storage.get(storage, {})
                others.pop(number, None)
                if not others:
                    self._by_storage.pop(storage, None)

    def of(self, tensor: torch.Tensor) -> list[_Held]:
        with self._lock:
            found = [
                held() for part in parts(tensor) for held in self._by_storage.get(storage_id(part), {}).copy().values()
            ]
        return [held for held in dict.fromkeys(found) if held is not None]


_watched = _Watched()


def _pack(tensor: torch.Tensor) -> _Held:
    """The same tensor, saved by two nodes, is held once."""
    for held in _watched.of(tensor):
        if _same(held.tensor, tensor) and held.version == _version_of(tensor):
            return held
    return _Held(tensor)


class _CopyBeforeWrite(TorchDispatchMode):
    def __init__(self, mutations: Mutations) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mutations = mutations

    def __torch_dispatch__(self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        filled = args[_FILLED[func]] if func in _FILLED else None
        targets = [one for one in written(func, args, kwargs) if isinstance(one, torch.Tensor) and one is not filled]
        for held in dict.fromkeys(held for target in targets for held in _watched.of(target)):
            self._mutations.copies += 1
            self._mutations.num_bytes += held.copy()
        return func(*args, **kwargs)


def _version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else version_of(tensor)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if not (a.layout == b.layout == torch.strided and a.dtype == b.dtype and type(a) is type(b.detach())):
        return False
    return all(
        look(a) == look(b)
        for look in (
            torch.Tensor.size,
            torch.Tensor.stride,
            torch.Tensor.storage_offset,
            torch.is_conj,
            torch.Tensor.is_neg,
        )
    )
