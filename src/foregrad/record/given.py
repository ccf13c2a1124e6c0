"""Given: lists and dicts among the arguments. The function gets copies, and what it changes there is carried back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from foregrad.errors import CaptureError
from foregrad.record.beside import Change, text_of

_CHANGES = (list, dict, deque)
_CONTAINERS = (*_CHANGES, tuple)


class Given:
    """Containers of the caller's, each beside the copy that the function got."""

    def __init__(self, real: Any = (), copy: Any = (), leaves: Sequence[Any] = (), ghosts: Sequence[Any] = ()) -> None:
        """`real` and `copy` are positional arguments and those by name; `ghosts` stand for the leaves of both."""
        named = [{**dict(enumerate(one[0])), **one[1]} if one else {} for one in (real, copy)]
        self._pairs = list(_pairs(named[0], named[1], ""))[1:]
        self._reals = {id(ghost): leaf for ghost, leaf in zip(ghosts, leaves, strict=True)}
        self._by_copy = {id(copied): caller for _, caller, copied in self._pairs}
        self._before = [list(_items(copied)) for _, _, copied in self._pairs]
        self._new: list[tuple[Any, Any]] = []

    def changes(self, definition: str) -> list[Change]:
        """What the function has changed in its copies."""
        found = []
        for (name, caller, copied), before in zip(self._pairs, self._before, strict=True):
            now = list(_items(copied))
            if isinstance(copied, _CHANGES) and not _same(before, now):
                self._new.append((caller, [self._back(one, name, definition) for one in now]))
                found.append(Change(name, f"was {_text(caller, before)}, is {_text(caller, now)}"))
        self._pairs, self._before, self._by_copy, self._reals = [], [], {}, {}
        return found

    def carry_back(self) -> None:
        """Do the same to the caller's."""
        for caller, items in self._new:
            caller.clear()
            if isinstance(caller, dict):
                caller.update(items)
            else:
                caller.extend(items)
        self._new = []

    def _back(self, value: Any, name: str, definition: str) -> Any:
        """What stands for an item of a copy in the caller's container."""
        if id(value) in self._by_copy:
            return self._by_copy[id(value)]
        if isinstance(value, torch.Tensor):
            real = self._reals.get(id(value))
            if real is None:
                raise CaptureError(
                    f"the function stores a tensor in `{name}`, which it was given; a program cannot do that at each "
                    f"call.\n{definition}\nReturn the tensor and store it outside."
                )
            return real
        if type(value) in _CONTAINERS:
            back = [self._back(one, name, definition) for one in _items(value)]
            return type(value)(back)
        return value


def _pairs(real: Any, copy: Any, name: str) -> Iterator[tuple[str, Any, Any]]:
    if type(real) is not type(copy) or not isinstance(real, _CONTAINERS) or real is copy:
        return
    if isinstance(real, _CHANGES):
        yield name, real, copy
    if isinstance(real, dict):
        for key in real:
            inner = f"{name}[{key!r}]" if name else str(key)
            yield from _pairs(real[key], copy[key], inner)
    elif len(real) == len(copy):
        for place, (one, other) in enumerate(zip(real, copy, strict=True)):
            yield from _pairs(one, other, f"{name}[{place}]")


def _items(value: Any) -> Iterator[Any]:
    return iter(value.items() if isinstance(value, dict) else value)


def _same(before: list[Any], now: list[Any]) -> bool:
    return len(before) == len(now) and all(map(_is_same, before, now))


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:  # an entry of a dict
        return all(map(_is_same, one, other))
    is_plain = isinstance(one, (bool, int, float, complex, str, bytes))
    return one is other or (is_plain and type(one) is type(other) and repr(one) == repr(other))


def _text(container: Any, items: list[Any]) -> str:
    return text_of(dict(items) if isinstance(container, dict) else items)
