"""Constants of code as texts: the same text means the same constant."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

_CONSTANTS = (bool, int, float, complex, str, bytes, type(None), type(...), slice)


def constant_text(value: Any, digest_of: Callable[[CodeType], str]) -> str:
    """A constant; code in it by its digest."""
    if isinstance(value, CodeType):
        return f"code {digest_of(value)}"
    if isinstance(value, tuple):
        return f"({', '.join(constant_text(one, digest_of) for one in value)})"
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(constant_text(one, digest_of) for one in value))}}}"
    if not isinstance(value, _CONSTANTS):
        raise TypeError(f"a constant of code that is not known: {value!r}")
    return f"{type(value).__name__} {value!r}"
