"""Rerecord: what a compiled function leaves to programs that outlive it, so that they can be recorded once more.

A result whose backward is still to run keeps its program alive. For a backward of an unusual kind the call is recorded
anew, from the function and its state. A program holds these as long as the compiled function lives, and weakly from
then on, so that a model that is dropped is freed at once.
"""

from __future__ import annotations

import inspect
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from foregrad.errors import BackwardError
from foregrad.runtime.dispatch import Dispatch
from foregrad.words.forks import lock


class _Compiled(Protocol):
    """What is looked at here of a compiled function."""

    name: str
    captures: tuple[Any, ...]
    _calls: tuple[Any, ...]
    _dispatch: Dispatch
    _keeps: dict[int, Any]
    _on_drop: list[Callable[[], None]]
    _lock: threading.RLock


T = TypeVar("T", bound=_Compiled)

#: What a compiled function has of the user's.
_OF_THE_USER = ("_target", "__wrapped__", "target", "state")


class Rerecord(Generic[T]):
    """A compiled function without its captures, as long as the user still has what it captures."""

    def __init__(self, compiled: T) -> None:
        self._name = compiled.name
        self._bare = _copy(compiled)
        self._bare.captures, self._bare._calls, self._bare._dispatch = (), (), Dispatch()
        self._bare._keeps, self._bare._on_drop = {}, []
        self._bare._lock = lock()
        self._references: dict[str, Callable[[], Any]] = {}

    def let_go(self) -> None:
        """Hold on to the user's objects weakly: the compiled function is gone."""
        for let_go in self._bare._on_drop:
            let_go()
        self._bare._keeps.clear()
        given = vars(self._bare)
        self._references |= {name: _reference(given.pop(name)) for name in _OF_THE_USER if name in given}

    def compiled(self) -> T:
        """The compiled function, which has captured nothing."""
        if not self._references:
            return self._bare
        found = {name: reference() for name, reference in self._references.items()}
        if any(value is None for value in found.values()):
            raise BackwardError(
                f"this backward has to be recorded anew, but {self._name} is gone.\n"
                "Keep the compiled function, or the one that it was made of, until the backward has run."
            )
        made = _copy(self._bare)
        vars(made).update(found)
        made._on_drop = []
        return made


def _copy(compiled: T) -> T:
    made = object.__new__(type(compiled))
    vars(made).update(vars(compiled))
    return made


def _reference(value: Any) -> Callable[[], Any]:
    """A weak reference, or the value itself where there can be none. It gives None for what is gone."""
    if inspect.ismethod(value):
        function, owner = value.__func__, _reference(value.__self__)
        return lambda: None if (found := owner()) is None else types.MethodType(function, found)
    if isinstance(value, tuple):
        parts = [_reference(one) for one in value]
        return lambda: None if None in (found := [part() for part in parts]) else tuple(found)
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value
