"""Plain values as JSON and back: numbers, texts, containers, and torch's small ones such as dtypes.

What JSON has is itself; everything else is `{"is": kind, ...}`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.errors import CorruptArtifact

#: What becomes of a value that is not plain.
Other = Callable[[Any], Any]

_NAMES = {torch.dtype: "dtype", torch.layout: "layout", torch.memory_format: "memory format"}
_CONTAINERS: dict[type, str] = {tuple: "tuple", list: "list", set: "set", frozenset: "frozenset", torch.Size: "size"}
_BY_NAME = {name: kind for kind, name in _CONTAINERS.items()}


def to_json(value: Any, other: Other) -> Any:
    """A value as JSON; `other` describes what is inside it and not plain."""
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if value - value == 0.0 else {"is": "float", "text": repr(value)}
    if type(value) in _CONTAINERS:
        items = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return {"is": _CONTAINERS[type(value)], "items": [to_json(v, other) for v in items]}
    if type(value) is dict:
        return {"is": "dict", "items": [[to_json(k, other), to_json(v, other)] for k, v in value.items()]}
    if type(value) in _NAMES:
        return {"is": _NAMES[type(value)], "text": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"is": "device", "text": str(value)}
    if type(value) is complex:
        return {"is": "complex", "text": repr(value)}
    if type(value) is bytes:
        return {"is": "bytes", "text": value.hex()}
    if type(value) in (slice, range):
        parts = [to_json(p, other) for p in (value.start, value.stop, value.step)]
        return {"is": type(value).__name__, "items": parts}
    if value is ...:
        return {"is": "ellipsis"}
    return other(value)


def from_json(data: Any, other: Other) -> Any:
    """The value that `to_json` made this of; `other` makes what is not plain."""
    if not isinstance(data, dict):
        return data
    kind, text, items = data.get("is"), data.get("text"), data.get("items", ())
    if kind in _BY_NAME:
        return _BY_NAME[kind](from_json(v, other) for v in items)
    if kind == "dict":
        return {from_json(k, other): from_json(v, other) for k, v in items}
    if kind in _FROM_TEXT:
        return _FROM_TEXT[kind](text)
    if kind in _FROM_PARTS:
        return _FROM_PARTS[kind](*(from_json(v, other) for v in items))
    return ... if kind == "ellipsis" else other(data)


def _attribute(name: Any) -> Any:
    found = getattr(torch, str(name), None)
    if not isinstance(found, tuple(_NAMES)):
        raise CorruptArtifact(f"there is no dtype, layout or memory format {name!r}")
    return found


_FROM_TEXT: dict[Any, Callable[[Any], Any]] = {
    **dict.fromkeys(_NAMES.values(), _attribute),
    "float": float,
    "complex": complex,
    "bytes": bytes.fromhex,
    "device": torch.device,
}
_FROM_PARTS: dict[Any, Callable[..., Any]] = {"slice": slice, "range": range}


def refuse(value: Any) -> Any:
    """For values that must be plain."""
    raise TypeError(f"a {type(value).__name__} is no plain value")
