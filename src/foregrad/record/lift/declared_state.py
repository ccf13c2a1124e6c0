"""Declared state: optimizers and other objects that a step reads and changes, beside its modules.

While the function is recorded, Python's numbers in them are symbols. Afterwards everything stands as it was, and what
the function put there (tensors, numbers, flags) is a list of stores, which each call repeats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from foregrad.core.errors import CaptureError
from foregrad.core.spec import is_number
from foregrad.record.ops import Storage
from foregrad.record.recording import Recording
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import Expression, SymbolicNumbers, expression_of
from foregrad.record.symbols.scalar_state import Mirror
from foregrad.torch_private.fake_tensors import FakeTensor

_NOTHING: Any = object()


@dataclass(frozen=True, eq=False)
class Slot:
    """Where something is kept: an item of a container, or an attribute of any other object."""

    holder: Any
    key: Any
    name: str


@dataclass(frozen=True, eq=False)
class Container:
    """A dict, list or tuple of declared state, as it was on entry."""

    index: int
    slot: Slot
    value: Any
    items: dict[Any, Any]  # by key or position
    lifted: dict[Any, Any] = field(default_factory=dict)  # items that are symbols, or have symbols in them

    def slot_of(self, key: Any) -> Slot:
        return Slot(self, key, f"{self.slot.name}.{'param' if isinstance(key, torch.Tensor) else key}")


@dataclass(frozen=True, eq=False)
class StateStore:
    """Something to put in a slot at each call: tensors, expressions and plain values in dicts, lists and tuples."""

    slot: Slot
    value: Any

    def tensors(self) -> list[torch.Tensor]:
        leaves = leaves_in(self.value)
        items = [item.tensor for item in map(item_of, leaves) if item is not None]
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)] + items


@dataclass(frozen=True, eq=False)
class Declared:
    """The state that a step declares, on entry; `lift` turns its numbers into symbols, `restore` puts all back."""

    numbers: SymbolicNumbers
    containers: list[Container] = field(default_factory=list)
    tensors: dict[int, Slot] = field(default_factory=dict)  # where tensors are kept, by their id
    slots: list[Slot] = field(default_factory=list)  # where numbers are kept, by what their expressions call `source`
    small: set[int] = field(default_factory=set)  # ids of tensors that may be read as numbers
    reads: dict[Expression, list[torch.Tensor]] = field(default_factory=dict)  # tensors that held a number on entry
    _by_value: dict[Any, Expression] = field(default_factory=dict)

    def add(self, name: str, one: Any) -> None:
        """Look at an optimizer, or at all attributes of any other object."""
        if isinstance(one, torch.optim.Optimizer):
            for attribute in ("param_groups", "state"):
                self._look(Slot(one, attribute, f"{name}.{attribute}"), getattr(one, attribute))
        else:
            self._look(Slot(one, "__dict__", name), vars(one))

    def _look(self, slot: Slot, value: Any) -> Any:
        """Take note of a value and all inside it; gives it with symbols for its numbers."""
        if is_number(value):
            self.slots.append(slot)
            return self.numbers.read(len(self.slots) - 1, value, slot.name).symbol()
        if isinstance(value, torch.Tensor):
            self.tensors.setdefault(id(value), slot)
            self.small.update([id(value)] if value.dim() == 0 else [])
            return value
        if isinstance(value, LRScheduler):
            self.add(slot.name, value)  # one of those that a schedule is made of
            return value
        items = _items(value)
        if items is None:
            return value
        container = Container(len(self.containers), slot, value, dict(items))
        self.containers.append(container)
        for key, item in container.items.items():
            symbol = self._look(container.slot_of(key), item)
            if symbol is not item:
                container.lifted[key] = symbol
        if type(value) is tuple and container.lifted:
            return tuple({**container.items, **container.lifted}.values())
        return value

    def lift(self) -> None:
        """Put symbols in the place of numbers."""
        for container in self.containers:
            for key, symbol in container.lifted.items() if type(container.value) is not tuple else ():
                container.value[key] = symbol

    def read(self, tensor: torch.Tensor, name: str) -> Any:
        """The number in a small tensor on entry. Tensors of one name that hold the same one are taken to go on so."""
        value = tensor.item()
        if not is_number(value):
            return None
        key = (tensor.dtype, name, repr(value))
        found = self._by_value.get(key)
        if found is None:
            found = self._by_value[key] = self.numbers.read(tensor.dtype, value, name)
        holders = self.reads.setdefault(found, [])
        if not any(tensor is t for t in holders):
            holders.append(tensor)
        return found.symbol()

    def restore(self) -> list[StateStore]:
        """Put everything back; says what the function had put there."""
        try:
            return [
                store for container in self.containers if self._is_held(container) for store in self._changes(container)
            ]
        finally:
            for container in self.containers:
                if isinstance(container.value, dict):
                    container.value.clear()
                    container.value.update(container.items)
                elif type(container.value) is list:
                    container.value[:] = container.items.values()

    def _is_held(self, container: Container) -> bool:
        """Whether a container is still where it was; what is in one that was replaced is of no interest."""
        holder, key = container.slot.holder, container.slot.key
        if not isinstance(holder, Container):
            return getattr(holder, key) is container.value
        if type(container.value) is tuple or type(holder.value) is tuple:
            return self._is_held(holder)
        return (_items(holder.value) or {}).get(key) is container.value and self._is_held(holder)

    def _changes(self, container: Container) -> Iterator[StateStore]:
        now = _items(container.value) or {}
        gone = [key for key in container.items if key not in now]
        if gone or (type(container.value) is list and len(now) != len(container.items)):
            what = f"removes {container.slot_of(gone[0]).name}" if gone else f"makes {container.slot.name} longer"
            raise CaptureError(f"the step {what}; a program cannot do that at each call.\nDo it outside the step.")
        for key, value in now.items() if type(container.value) is not tuple else ():
            before = container.items.get(key, _NOTHING)
            if value is not container.lifted.get(key, before) and not self._are_empty(value, before):
                yield StateStore(container.slot_of(key), _stored(value))

    def _are_empty(self, value: Any, before: Any) -> bool:
        """Whether one empty container has replaced another."""
        was_empty = any(c.value is before and not c.items for c in self.containers)
        return was_empty and type(value) is type(before) and not value


def declare(recording: Recording, state: tuple[Any, ...], names: dict[int, str]) -> tuple[Declared, Mirror | None]:
    """The declared state that is not in modules; small tensors in either may be read as numbers, in the mirror."""
    declared = Declared(recording.numbers)
    for one in state:
        if isinstance(one, torch.nn.Module):
            declared.small.update(id(b) for b in one.buffers() if b.dim() == 0)
        elif isinstance(one, torch.Tensor):
            declared.small.update([id(one)] if one.dim() == 0 else [])
        else:
            declared.add(names.get(id(one), type(one).__name__.lower()), one)

    def read(storage: Storage) -> Any:
        real = next((i.real for i in recording.inputs.all if i.alias.storage is storage), None)
        if real is None or id(real) not in declared.small or isinstance(real, FakeTensor):
            return None
        slot = declared.tensors.get(id(real))
        return declared.read(real, "number" if slot is None else str(slot.key))

    recorder = recording.recorder
    if not state:
        return declared, None
    return declared, Mirror(recorder.ops, recorder.memory, recorder.constants, recording.numbers, read)


def _stored(value: Any) -> Any:
    found = expression_of(value)
    if found is not None:
        return found
    if type(value) is dict:
        return {k: _stored(v) for k, v in value.items()}
    return type(value)(_stored(v) for v in value) if type(value) in (list, tuple) else value


def leaves_in(value: Any) -> list[Any]:
    """Everything in nested dicts, lists and tuples that is none itself."""
    if isinstance(value, dict):
        return [leaf for v in value.values() for leaf in leaves_in(v)]
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in leaves_in(v)]
    return [value]


def _items(value: Any) -> dict[Any, Any] | None:
    if isinstance(value, dict):
        return value
    return dict(enumerate(value)) if type(value) in (list, tuple) else None
