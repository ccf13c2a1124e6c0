"""The real class of an object, which may answer for its `__class__` by itself."""

from __future__ import annotations

import threading
from typing import Any


def is_a(value: Any, kinds: Any) -> bool:
    """Whether an object is of a class, or of one of several."""
    return issubclass(type(value), kinds)


def attributes_in(value: Any) -> Any:
    """The dict of an object's attributes, whatever its class makes of a question for it; None if it has none."""
    owner: Any = threading.local if is_a(value, threading.local) else object  # the former has a dict for each thread
    try:
        return owner.__getattribute__(value, "__dict__")
    except AttributeError:
        return None
