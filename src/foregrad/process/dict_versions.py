"""Versions of dicts: a number that differs after every change of a dict, where this Python keeps one.

Reading it takes as long as one look into the dict, whatever is in there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

#: `ob_refcnt`, `ob_type` and `ma_used` stand before `ma_version_tag` (PEP 509).
_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)

#: What has the version of a dict as its `value`.
Version = ctypes.c_uint64


def version_of(entries: dict[Any, Any]) -> Version:
    """The version of a dict, to be read again and again: the dict must stay alive."""
    return Version.from_address(id(entries) + _OFFSET)


@cache
def has_versions() -> bool:
    """Whether versions behave here as they should: Python has none from 3.14 on."""
    if dict.__basicsize__ < _OFFSET + ctypes.sizeof(Version):
        return False
    holder = _Holder()
    for entries in ({"a": 1}, vars(holder)):
        version = version_of(entries)
        seen = [version.value]
        if version.value != seen[0]:
            return False
        for change in _CHANGES:
            change(entries)
            seen.append(version.value)
        for number in range(64):  # until the interpreter has adapted to it
            holder.a = number
            seen.append(version.value if entries is vars(holder) else -number)
        if len(set(seen)) != len(seen):
            return False
    return True


class _Holder:
    a: Any = None

    def __init__(self) -> None:
        self.a = 1


_CHANGES: tuple[Callable[[Any], object], ...] = (
    lambda d: d.__setitem__("a", 2),
    lambda d: d.__setitem__("b", 3),
    lambda d: d.update(c=4),
    lambda d: d.setdefault("e", 5),
    lambda d: d.pop("b"),
    lambda d: d.__delitem__("a"),
    lambda d: d.__ior__({"f": 1}),
    lambda d: d.clear(),
)
