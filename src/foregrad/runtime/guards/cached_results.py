"""Results that `functools.lru_cache` keeps: what a function answers without running again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from foregrad.runtime.guards.nodes import ABSENT


@dataclass(frozen=True, eq=False)
class CachedResult:
    """One result, read as long as it is in the cache: `result(function)`."""

    key: Any
    entry: Any  # of the cache's dict: the result, or a link that only the cache can follow
    known: tuple[Any, ...]  # the arguments, and the result for them

    def __call__(self, function: Any) -> Any:
        return self.known if _entries(function).get(self.key) is self.entry else ABSENT


def tells_results(function: Any) -> bool:
    """Whether it can be said for which arguments a function keeps results."""
    return not function.cache_parameters()["typed"]


def cached_results(function: Any) -> Iterator[CachedResult]:
    """All results that a function keeps now."""
    is_bounded = function.cache_parameters()["maxsize"] is not None
    for key, entry in list(_entries(function).items()):
        args, kwargs = _arguments(function, key)
        result = function(*args, **kwargs) if is_bounded else entry  # it is there, so the function does not run
        yield CachedResult(key, entry, (args, kwargs, result))


def _entries(function: Any) -> dict[Any, Any]:
    """The dict of the cache, by what lies beside it; one of a limited size leads to links, beside which results lie."""
    held = gc.get_referents(function)
    attributes = vars(function)
    dicts = [one for one in held if type(one) is dict and one is not attributes]
    links = [one for one in held if isinstance(one, type) and one.__name__ == "_lru_list_elem"]
    if function.cache_parameters()["maxsize"] is None:
        return dicts[0]
    return next((one for one in dicts if one and all(type(link) in links for link in one.values())), {})


def _arguments(function: Any, key: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a function was called with: a key is one number or string, or all arguments, with a mark before keywords."""
    if type(key) is not tuple:
        return (key,), {}
    marks = [one for one in gc.get_referents(function) if type(one) is object]
    place = next((place for place, one in enumerate(key) if any(one is mark for mark in marks)), len(key))
    named = key[place + 1 :]
    return key[:place], dict(zip(named[::2], named[1::2], strict=True))
