"""Container arguments: lists and dicts. The function gets copies; each call changes its own as it has done.

batch.pop("labels")    batch == {"x": x, "labels": y}  becomes  {"x": the x of the call}
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of

_CHANGES = (list, dict, deque)
_CONTAINERS = (*_CHANGES, tuple)

#: From the arguments, positional and by name, to something in them.
Path = tuple[Any, ...]


@dataclass(frozen=True)
class Found:
    """What a call was given at a place."""

    path: Path


@dataclass(frozen=True)
class NewContainer:
    """A container that the function has made."""

    kind: type
    items: tuple[Any, ...]


@dataclass(frozen=True)
class Edits:
    """New contents for containers among the arguments of a call."""

    contents: tuple[tuple[Path, tuple[Any, ...]], ...]

    def apply(self, args: Any, kwargs: Any) -> None:
        given = _named(args, kwargs)
        new = [(_at(given, path), [_value(given, item) for item in items]) for path, items in self.contents]
        for container, items in new:
            container.clear()
            if isinstance(container, dict):
                container.update(items)
            else:
                container.extend(items)


class ContainerArguments:
    """Containers of the caller's beside the copies that the function gets."""

    def __init__(self, real: Any = ((), {}), copy: Any = ((), {})) -> None:
        self._copies = list(_walk(_named(*copy), _named(*real), ()))
        self._paths: dict[int, Path] = {}
        for path, one in self._copies:
            self._paths.setdefault(id(one), path)
        self._before = [list(_items(one)) if isinstance(one, _CHANGES) else [] for _, one in self._copies]

    @property
    def copied(self) -> frozenset[int]:
        """The ids of the copies."""
        return frozenset(id(one) for _, one in self._copies)

    def edits(self, definition: str) -> Edits | None:
        """What the function has changed in its copies, which are let go of."""
        found = []
        for (path, one), before in zip(self._copies, self._before, strict=True):
            if isinstance(one, _CHANGES) and not _same(before, list(_items(one))):
                name = "".join(str(key) if place == 0 else f"[{key!r}]" for place, key in enumerate(path))
                found.append((path, tuple(self._item(item, name, definition) for item in _items(one))))
        self._copies, self._before, self._paths = [], [], {}
        return Edits(tuple(found)) if found else None

    def _item(self, value: Any, name: str, definition: str) -> Any:
        if isinstance(value, (torch.Tensor, *_CHANGES)) and id(value) in self._paths:
            return Found(self._paths[id(value)])
        is_number = item_of(value) is not None or expression_of(value) is not None
        if isinstance(value, torch.Tensor) or is_number:
            raise CaptureError(
                f"the function stores a {'number' if is_number else 'tensor'} in `{name}`, which it was given; a "
                f"program cannot do that at each call.\n{definition}\nReturn it and store it outside."
            )
        if type(value) in _CONTAINERS:
            return NewContainer(type(value), tuple(self._item(one, name, definition) for one in _items(value)))
        return value


def _named(args: Any, kwargs: Any) -> dict[Any, Any]:
    return {**dict(enumerate(args)), **kwargs}


def _at(given: Any, path: Path) -> Any:
    for key in path:
        given = given[key]
    return given


def _value(given: Any, item: Any) -> Any:
    if isinstance(item, Found):
        return _at(given, item.path)
    return item.kind([_value(given, one) for one in item.items]) if isinstance(item, NewContainer) else item


def _walk(copy: Any, real: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Containers that were copied, and tensors in them, with the way there."""
    if path and isinstance(copy, (torch.Tensor, *_CONTAINERS)) and (copy is not real or isinstance(copy, torch.Tensor)):
        yield path, copy
    if type(copy) is not type(real) or not isinstance(copy, _CONTAINERS) or copy is real:
        return
    keys = list(copy) if isinstance(copy, dict) else range(len(copy))
    for key in keys:
        yield from _walk(copy[key], real[key], (*path, key))


def _items(value: Any) -> Iterator[Any]:
    return iter(value.items() if isinstance(value, dict) else value)


def _same(before: list[Any], now: list[Any]) -> bool:
    return len(before) == len(now) and all(map(_is_same, before, now))


def _is_same(one: Any, other: Any) -> bool:
    if type(one) is tuple and type(other) is tuple and len(one) == len(other) == 2:  # an entry of a dict
        return all(map(_is_same, one, other))
    is_plain = isinstance(one, (bool, int, float, complex, str, bytes))
    return one is other or (is_plain and type(one) is type(other) and repr(one) == repr(other))
