"""Iterators: where an iterator of Python's own stands, to be compared with where it stands later."""

from __future__ import annotations

import itertools
import operator
from types import GeneratorType
from typing import Any

import torch

from foregrad.process.no_warnings import no_warnings

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def is_iterator(value: Any) -> bool:
    """Whether it is an iterator of Python's own, which keeps where it stands for itself."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def stand_of(value: Any) -> Any:
    """Where an iterator stands. One that does not tell stands elsewhere each time, since it may have moved."""
    if isinstance(value, GeneratorType):
        inner = () if value.gi_frame is None else (value.gi_frame.f_lasti, *value.gi_frame.f_locals.values())
        return "inside", *map(_told, inner)
    if isinstance(value, (itertools.count, itertools.repeat)):
        return repr(value)
    left = operator.length_hint(value, -1)
    return ("left", left) if left >= 0 else _parts(value)


def _parts(value: Any) -> Any:
    """What a copy of an iterator would be made from."""
    try:
        with no_warnings():  # Python 3.14 does not copy those of itertools any more
            made = value.__reduce__()
    except TypeError:
        return "unknown", object()
    return "inside", *map(_told, made[1:])


def _told(value: Any) -> Any:
    if is_iterator(value):
        return stand_of(value)
    if type(value) in (tuple, list):
        return tuple(map(_told, value))
    return value if isinstance(value, PLAIN) else id(value)
