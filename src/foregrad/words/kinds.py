"""Kinds: of what class an object is, without asking the object, which may answer for its `__class__` by itself."""

from __future__ import annotations

from typing import Any


def is_a(value: Any, kinds: Any) -> bool:
    """Whether an object is of a class, or of one of several."""
    return issubclass(type(value), kinds)


def attributes_in(value: Any) -> Any:
    """The dict of an object's attributes, whatever its class makes of a question for it; None if it has none."""
    try:
        return object.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
