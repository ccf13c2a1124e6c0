"""Dispatch: of many captured calls, the one that was right for such arguments before is tried first.

    f(x) of 300 shapes: 300 captured calls, each with its guards; the shape leads to one of them

What arguments look like decides nothing but the order: the guards of a call say whether it is right. What else a
capture depends on, such as attributes of modules, is not looked at here: of such calls the one used last comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch

from foregrad.core.plain_objects import held_by, is_plain
from foregrad.runtime.sentinels import MISS

Call = Callable[[Any, Any], Any]

#: So many calls are tried one after another sooner than one is looked up.
FEW = 6
_MOST_LOOKS, _DEEPEST = 4096, 4
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})


class Dispatch:
    """Which calls were right for arguments that look alike, those used last first."""

    def __init__(self) -> None:
        self._by_look: dict[Hashable, tuple[Call, ...]] = {}

    def run(self, calls: tuple[Call, ...], args: Any, kwargs: Any) -> Any:
        """The result of the call whose guards hold, MISS if there is none."""
        look = look_of(args, kwargs)
        known = self._by_look.get(look, ())
        for place, call in enumerate(known):
            result = call(args, kwargs)
            if result is not MISS:
                if place:
                    self._by_look[look] = (call, *(one for one in known if one is not call))
                return result
        for call in calls:
            if call not in known:
                result = call(args, kwargs)
                if result is not MISS:
                    if len(self._by_look) >= _MOST_LOOKS:
                        self._by_look.clear()
                    self._by_look[look] = (call, *known)
                    return result
        return MISS


def look_of(args: Any, kwargs: Any, *, into_objects: bool = False) -> Hashable:
    """What the arguments of a call look like."""
    looks = [_look(one, 0, into_objects) if one else None for one in (args, kwargs)]
    return (torch.is_grad_enabled(), *looks)


def _look(value: Any, depth: int, into_objects: bool) -> Any:
    """What a value looks like. Two that look alike may differ."""
    kind = type(value)
    if isinstance(value, torch.Tensor):
        return kind, value.shape, value.dtype, value.requires_grad
    if kind in _PLAIN:
        return kind, value
    if depth == _DEEPEST:
        return kind
    if kind is tuple or kind is list:
        return kind, tuple([_look(one, depth + 1, into_objects) for one in value])
    if kind is dict:
        items = [(key, one) for key, one in value.items() if type(key) in _PLAIN]
        return kind, tuple([(key, _look(one, depth + 1, into_objects)) for key, one in items])
    if into_objects and is_plain(value):
        return kind, tuple([(key, _look(one, depth + 1, into_objects)) for key, one in held_by(value).items()])
    return kind
