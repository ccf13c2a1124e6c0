"""Places: what a call reads of the function and of its state, by where it is kept, so that another process finds it.

{"is": "module", "of": 0, "path": "blocks.3.norm"}       a module of the first state
{"is": "state", "of": 1}                                 the second state itself, such as an optimizer
{"is": "cell", "name": "model"}                          a variable of the function's closure
{"is": "target"}                                         the function itself
{"is": "defaults"}                                       the defaults of its parameters
{"is": "bound"}                                          the attributes of the object that the function is a method of
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from foregrad.errors import StaleArtifact


class Places:
    """The function and the state of a call."""

    def __init__(self, state: tuple[Any, ...], function: Callable[..., Any] | None) -> None:
        self._state = state
        self._function = None if function is None or isinstance(function, torch.nn.Module) else function
        self._known: dict[int, dict[str, Any]] = {}
        for number, one in enumerate(state):
            if isinstance(one, torch.nn.Module):
                for path, module in one.named_modules():
                    place = {"is": "module", "of": number, "path": path}
                    self._known.setdefault(id(module), place)
                    self._known.setdefault(id(vars(module)), {"is": "attributes", "of": place})
            else:
                self._known[id(one)] = {"is": "state", "of": number}
        if self._function is not None:
            self._known.setdefault(id(self._function), {"is": "target"})
        for name, cell in self._cells().items():
            self._known.setdefault(id(cell), {"is": "cell", "name": name})
        for kind in ("defaults", "kwdefaults"):
            if (defaults := self._defaults(kind)) is not None:
                self._known.setdefault(id(defaults), {"is": kind})
        for kind, variables in (("globals", self._globals()), ("bound", self._bound())):
            if variables is not None:
                self._known.setdefault(id(variables), {"is": kind})

    def of(self, value: Any) -> dict[str, Any] | None:
        """Where an object is kept; None if it is not kept in any of these."""
        return self._known.get(id(value))

    def find(self, place: dict[str, Any]) -> Any:
        """What is kept at a place."""
        kind = place["is"]
        if kind == "attributes":
            return vars(self.find(place["of"]))
        if kind == "cell":
            return self._found(self._cells().get(place["name"]), f"the variable {place['name']}")
        if kind == "target":
            return self._found(self._function, "the function")
        if kind in ("defaults", "kwdefaults"):
            return self._found(self._defaults(kind), "a default of the function")
        if kind == "globals":
            return self._found(self._globals(), "the function")
        if kind == "bound":
            return self._found(self._bound(), "the object that the function is a method of")
        if place["of"] >= len(self._state):
            raise StaleArtifact(f"{len(self._state)} states are given, and the file was made for more")
        one = self._state[place["of"]]
        if kind == "state":
            return one
        try:
            return one.get_submodule(place["path"])
        except AttributeError:
            raise StaleArtifact(f"{type(one).__name__} has no module {place['path']!r}") from None

    def _found(self, value: Any, what: str) -> Any:
        if value is None:
            raise StaleArtifact(f"{what} is not there: the program reads it when it is called")
        return value

    def _cells(self) -> dict[str, Any]:
        function = self._code_owner()
        if function is None:
            return {}
        return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def _defaults(self, kind: str) -> Any:
        return getattr(self._code_owner(), f"__{kind}__", None)

    def _globals(self) -> dict[str, Any] | None:
        function = self._code_owner()
        return None if function is None else function.__globals__

    def _bound(self) -> dict[str, Any] | None:
        owner = getattr(inspect.unwrap(self._function), "__self__", None) if self._function is not None else None
        return getattr(owner, "__dict__", None)

    def _code_owner(self) -> Any:
        function: Any = self._function
        if function is None:
            return None
        function = inspect.unwrap(function)
        function = getattr(function, "__func__", function)
        return function if hasattr(function, "__code__") else None


PLACES = ("attributes", "bound", "cell", "defaults", "kwdefaults", "target", "globals", "state", "module")
