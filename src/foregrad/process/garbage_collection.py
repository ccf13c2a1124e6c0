"""Garbage: work that makes many objects which stay does not look through them again and again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foregrad.process.temporary import TemporaryChange


class _Collection(TemporaryChange):
    places = ("gc.isenabled()",)
    was_enabled = False

    def change(self) -> None:
        self.was_enabled = gc.isenabled()
        gc.disable()

    def put_back(self) -> None:
        if self.was_enabled:
            gc.enable()


_collection = _Collection()


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Leave cycles of objects alone for a while: looking for them would make the cost of the work grow."""
    with _collection.held():
        yield


def all_grown_up() -> None:
    """From here on, what is young was made since: as long as no garbage is collected."""
    gc.collect(0)


def young_objects() -> Callable[[object], bool]:
    """Which objects with attributes were made since then, for many of them."""
    ids: list[frozenset[int]] = []

    def is_young_one(value: object) -> bool:
        if not ids:
            ids.append(frozenset(map(id, gc.get_objects(generation=0))))
        return id(value) in ids[0]

    return is_young_one


def is_young(value: object) -> bool:
    """Whether an object with attributes was made since then."""
    return any(one is value for one in gc.get_objects(generation=0))
