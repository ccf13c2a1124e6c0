"""Comparable values: what a guard can hold, and what of the arguments must be the very same object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from foregrad.record.lift.argument_objects import GivenNumber
from foregrad.torch_private.pytree import GivenObject, node_of

PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
)


def can_compare(value: Any, within: tuple[Any, ...] = ()) -> bool:
    """Whether a guard can hold a value: plain ones, and small containers of them; not those that hold themselves."""
    if issubclass(type(value), (*PLAIN, torch.Tensor)):
        return True
    if type(value) not in (list, tuple, dict) or len(value) >= 100 or any(value is one for one in within):
        return False
    inner = value.values() if type(value) is dict else value
    keys = value if type(value) is dict else ()
    return all(issubclass(type(k), PLAIN) for k in keys) and all(can_compare(v, (*within, value)) for v in inner)


def containers_in(value: Any) -> Iterator[Any]:
    """A value that can be compared, and the containers in it."""
    if isinstance(value, (list, tuple, dict)):
        yield value
        for one in value.values() if isinstance(value, dict) else value:
            yield from containers_in(one)


def objects_in(arguments: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Objects among the arguments that must be the very same, by name: what they hold is looked at too."""
    if isinstance(arguments, GivenObject):
        arguments = dict(zip(arguments.names, arguments.values, strict=True))
    elif isinstance(arguments, (list, tuple)):
        arguments = dict(enumerate(arguments))
    elif is_dataclass(arguments) and not isinstance(arguments, type):
        arguments = {one.name: getattr(arguments, one.name, None) for one in fields(arguments)}
    if isinstance(arguments, dict):
        for key, value in arguments.items():
            yield from objects_in(value, f"{name}.{key}" if name else str(key))
    elif not isinstance(arguments, (*PLAIN, torch.Tensor, GivenNumber)):
        node = node_of(arguments)
        if node is None:
            yield name, arguments
        else:
            yield from objects_in(node.children, name)
