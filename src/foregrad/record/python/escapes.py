"""Escapes: tensors without data, and numbers of such, that the function has left in objects outside itself.

A list that grows, a dict that a hook fills, an attribute of an argument: what is put there stays after the capture. A
ghost to which Python refers more often than the recording does is looked for in all that the function can reach.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch.autograd.graph import Node

from foregrad.core.real_class import attributes_in, is_a
from foregrad.record.python.executed_code import is_library_file
from foregrad.record.recording import Recording
from foregrad.record.symbols.data_values import item_of

#: References to a ghost while it is counted: the list of all ghosts, a variable, an argument.
_WHILE_COUNTED = 3
_AT_MOST = 1_000_000  # objects that are looked at


@dataclass(frozen=True)
class Escape:
    """A ghost, a number of one, or a copy of what it was given, in an object of the user's, and how to get there."""

    value: Any
    path: str
    holder: Any
    cache: Any = None  # the `lru_cache` that keeps it

    @property
    def tensor(self) -> Any:
        item = item_of(self.value)
        return self.value if item is None else item.tensor

    def undo(self) -> None:
        """Take the ghost out of its holder again, where that is a container."""
        if self.cache is not None:
            self.cache.cache_clear()
        elif isinstance(self.holder, list):
            self.holder[:] = [one for one in self.holder if one is not self.value]
        elif isinstance(self.holder, dict):
            for key in [key for key, value in self.holder.items() if value is self.value]:
                del self.holder[key]
        elif isinstance(self.holder, set):
            self.holder.discard(self.value)


def escapes(recording: Recording, roots: Iterable[tuple[str, Any]]) -> list[Escape]:
    """Ghosts that are found from these roots, each of which has a name."""
    arguments, numbers = recording.objects.now.arguments, recording.recorder.values.items
    wanted = {id(tensor) for tensor in _referred_to(recording)}
    wanted |= {id(part.copy) for part in (arguments.referred_to() if arguments is not None else ())}
    wanted.update(id(number) for number in numbers if sys.getrefcount(number) > _WHILE_COUNTED)
    return list(_found(wanted, roots)) if wanted else []


def _referred_to(recording: Recording) -> list[torch.Tensor]:
    """Ghosts to which someone else may refer."""
    ours: Counter[int] = Counter(map(id, recording.recorder.objects))
    ours.update(id(one) for one in recording.outputs)
    for lifted in recording.inputs.all:
        ours.update(id(one) for one in (lifted.ghost, lifted.slot))
    found = []
    for tensor in recording.recorder.objects:
        if sys.getrefcount(tensor) > ours[id(tensor)] + _WHILE_COUNTED - 1:
            found.append(tensor)
    return found


def _found(wanted: set[int], roots: Iterable[tuple[str, Any]]) -> Iterator[Escape]:
    seen: set[int] = set()
    waiting: list[tuple[str, Any, Any]] = [(path, value, None) for path, value in roots]
    while waiting and len(seen) < _AT_MOST:
        path, value, cache = waiting.pop()
        if id(value) in seen or _is_elsewhere(value):
            continue
        seen.add(id(value))
        cache = value if is_a(value, _lru_cache_wrapper) else cache
        for name, item, holder in _inside(path, value):
            if id(item) in wanted:
                yield Escape(item, name, holder, cache)
            elif gc.is_tracked(item):
                waiting.append((name, item, cache))


#: What holds code and not data, or is looked after elsewhere.
_ELSEWHERE = (ModuleType, CodeType, FrameType, BuiltinFunctionType, Node)


def _is_elsewhere(value: Any) -> bool:
    if is_a(value, type):  # a class of the user's may be given anything
        return _is_library(value.__module__) or f"{value.__module__}.".startswith("foregrad.")
    return is_a(value, _ELSEWHERE) or f"{type(value).__module__}.".startswith("foregrad.")


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any, Any]]:
    """What an object refers to, with the name by which it does, and what holds it."""
    if is_a(value, dict):
        yield from ((f"{path}[{key!r}]", item, value) for key, item in list(value.items()))
    elif is_a(value, (list, tuple)):
        yield from ((f"{path}[{place}]", item, value) for place, item in enumerate(list(value)))
    elif is_a(value, torch.Tensor):  # its own attributes; its memory and history are no objects
        yield from ((f"{path}.{key}", item, vars(value)) for key, item in vars(value).items())
    elif is_a(value, FunctionType):
        yield from ((path, item, value) for item in (value.__closure__, value.__defaults__, value.__kwdefaults__))
        yield path, vars(value), value
    elif is_a(value, (MethodType, CellType)):
        yield from ((path, item, value) for item in gc.get_referents(value))
    else:
        names = attributes_in(value) or {}
        yield from ((f"{path}.{key}", item, names) for key, item in list(names.items()))
        known = {id(names), *map(id, names.values())}
        yield from ((path, item, value) for item in gc.get_referents(value) if id(item) not in known)


def _is_library(module: str) -> bool:
    """Whether a module is one of torch's, Python's or another installed one."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return (file is None and module != "__main__") or (file is not None and is_library_file(file))
