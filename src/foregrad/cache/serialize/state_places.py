"""Places: what a call reads of the function and of its state, by where it is kept, so that another process finds it.

{"is": "module", "of": 0, "path": "blocks.3.norm"}       a module of the first state
{"is": "attribute", "of": {...}, "name": "items"}        a list or dict of tensors, an attribute of a module
{"is": "state", "of": 1}                                 the second state itself, such as an optimizer
{"is": "cell", "name": "model"}                          a variable of the function's closure
{"is": "target"}                                         the function itself
{"is": "defaults"}                                       the defaults of its parameters
{"is": "bound"}                                          the attributes of the object that the function is a method of
{"is": "held", "by": ..., "name": "net", "path": "0"}    a module in one of the function's variables, or a part of it
{"is": "hook", "of": {...}, "table": ..., ...}           what holds a variable of a hook: see `hook_places.py`
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import CellType
from typing import Any

import torch

from foregrad.cache.serialize.hook_places import contents_of, find_part, names_in, parts_of_hooks
from foregrad.core.errors import CorruptArtifact, StaleArtifact
from foregrad.torch_private.modules import TABLES, UNSAVED_BUFFERS

#: What a module has in any case, and is read by other names.
_NOT_ATTRIBUTES = (*TABLES, UNSAVED_BUFFERS)


class StatePlaces:
    """The function and the state of a call. With `hooks`, also what belongs to hooks of modules, in which a file from
    somebody else has nothing to look for."""

    def __init__(self, state: tuple[Any, ...], function: Callable[..., Any] | None, *, hooks: bool = False) -> None:
        self._state = state
        self._hooks = hooks
        self._tops: set[int] = set()
        self._function = None if function is None or isinstance(function, torch.nn.Module) else function
        self._known: dict[int, dict[str, Any]] = {}
        for number, one in enumerate(state):
            if isinstance(one, torch.nn.Module):
                self._add_modules(one, {"is": "module", "of": number})
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
        for by, name, value in self._variables():
            if issubclass(type(value), torch.nn.Module):
                self._add_modules(value, {"is": "held", "by": by, "name": name})
        if hooks:
            self._add_hooks(None, None)

    def _add_hooks(self, of: dict[str, Any] | None, module: torch.nn.Module | None) -> None:
        for part in parts_of_hooks(module):
            place = {"is": "hook", "of": of, **part.place}
            self._known.setdefault(id(part.owner), place)
            for name, value in part.seen.items():
                if issubclass(type(value), torch.nn.Module):
                    self._add_modules(value, {"is": "held", "by": place, "name": name})

    def _add_modules(self, top: torch.nn.Module, place: dict[str, Any]) -> None:
        if id(top) in self._tops:
            return
        self._tops.add(id(top))
        for path, module in top.named_modules():
            here = {**place, "path": path}
            self._known.setdefault(id(module), here)
            self._known.setdefault(id(vars(module)), {"is": "attributes", "of": here})
            for name, value in vars(module).items():
                if name not in _NOT_ATTRIBUTES and _has_tensors(value):
                    self._known.setdefault(id(value), {"is": "attribute", "of": here, "name": name})
            if self._hooks:
                self._add_hooks(here, module)

    def _variables(self) -> Iterator[tuple[dict[str, Any], str, Any]]:
        """What the function can name: variables around it, globals that it reads, attributes of its object."""
        for name, cell in self._cells().items():
            yield {"is": "cell", "name": name}, name, contents_of(cell)
        function, bound = self._code_owner(), self._bound()
        variables: dict[str, Any] = {} if function is None else function.__globals__
        for name in sorted(names_in(function.__code__)) if function is not None else ():
            if name in variables:
                yield {"is": "globals"}, name, variables[name]
        for name, value in (bound or {}).items():
            yield {"is": "bound"}, name, value

    def of(self, value: Any) -> dict[str, Any] | None:
        """Where an object is kept; None if it is not kept in any of these."""
        return self._known.get(id(value))

    def find(self, place: dict[str, Any]) -> Any:
        """What is kept at a place."""
        kind = place["is"]
        if kind == "attributes":
            return vars(self.find(place["of"]))
        if kind == "attribute":
            return self._found(vars(self.find(place["of"])).get(place["name"]), f"the attribute {place['name']}")
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
        if kind == "held":
            return self._held(place)
        if kind == "hook":
            return self._part_of_hook(place)
        if place["of"] >= len(self._state):
            raise StaleArtifact(f"{len(self._state)} states are given, and the file was made for more")
        one = self._state[place["of"]]
        if kind == "state":
            return one
        return _part_of(one, place["path"])

    def _part_of_hook(self, place: dict[str, Any]) -> Any:
        if not self._hooks:
            raise CorruptArtifact("a file has no place in a hook")
        return find_part(None if place["of"] is None else self.find(place["of"]), place)

    def _held(self, place: dict[str, Any]) -> Any:
        by, name = self.find(place["by"]), place["name"]
        found = contents_of(by) if isinstance(by, CellType) else by.get(name)
        if not issubclass(type(found), torch.nn.Module):
            raise StaleArtifact(f"{name} is no module: the program reads it when it is called")
        return _part_of(found, place["path"])

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


def _has_tensors(value: Any) -> bool:
    """Whether this is a list or a dict of tensors, which can be read where it is and cannot be written down."""
    held = value.values() if type(value) is dict else value if type(value) is list else ()
    return any(isinstance(one, torch.Tensor) for one in held)


def _part_of(module: Any, path: str) -> Any:
    try:
        return module.get_submodule(path)
    except AttributeError:
        raise StaleArtifact(f"{type(module).__name__} has no module {path!r}") from None


PLACES = (
    "attribute",
    "attributes",
    "bound",
    "cell",
    "defaults",
    "kwdefaults",
    "target",
    "globals",
    "held",
    "hook",
    "state",
    "module",
)
