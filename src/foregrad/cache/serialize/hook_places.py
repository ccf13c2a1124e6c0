"""Hook places: what holds the variables of hooks, by the module and the number of the hook there.

{"is": "hook", "of": {...}, "table": "_forward_hooks", "number": 0, "part": "cell", "name": "scale"}

A process that has the same key has the same hooks in the same order, with code that has the same variables.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from foregrad.core.errors import StaleArtifact
from foregrad.torch_private.global_state import global_hooks
from foregrad.torch_private.modules import HOOKS

_MOST_WRAPPERS = 3


@dataclass(frozen=True)
class PartOfHook:
    """A cell, or a dict or tuple of variables: where it is, and what of it the key of a call sees, by name."""

    table: str
    number: int
    part: str
    name: str
    owner: Any
    seen: dict[str, Any]

    @property
    def place(self) -> dict[str, Any]:
        return {key: getattr(self, key) for key in ("table", "number", "part", "name")}


def parts_of_hooks(module: torch.nn.Module | None) -> Iterator[PartOfHook]:
    """All parts of the hooks of a module; of those that run at every module or optimizer, if it is None."""
    own = (
        {table: [*vars(module)[table].values()] for table in HOOKS if vars(module).get(table)}
        if module is not None
        else {}
    )
    for table, hooks in (global_hooks() if module is None else own).items():
        for number, hook in enumerate(hooks):
            for part, name, owner, seen in _parts(hook):
                yield PartOfHook(table, number, part, name, owner, seen)


def find_part(module: torch.nn.Module | None, place: dict[str, Any]) -> Any:
    """What is at a place in the hooks of a module, or of all."""
    wanted = {key: place[key] for key in ("table", "number", "part", "name")}
    found = next((one.owner for one in parts_of_hooks(module) if one.place == wanted), None)
    if found is None:
        raise StaleArtifact(
            f"the hook {wanted['number']} of {wanted['table']} has no {wanted['part']} {wanted['name']}"
        )
    return found


def _parts(hook: Any, depth: int = 0) -> Iterator[tuple[str, str, Any, dict[str, Any]]]:
    """What holds the variables that a hook can name, by its kind; also of a function that it is wrapped around."""
    if isinstance(hook, functools.partial):
        yield "arguments", "", hook.args, {}
        yield "keywords", "", hook.keywords, hook.keywords
        yield from _parts(hook.func, depth)
        return
    owner, function = _taken_apart(hook)
    if owner is not None and isinstance(getattr(owner, "__dict__", None), dict):
        yield "attributes", "", vars(owner), vars(owner)
    if not isinstance(function, FunctionType):
        return
    variables = function.__globals__
    yield "globals", "", variables, {n: variables[n] for n in sorted(names_in(function.__code__)) if n in variables}
    for kind in ("defaults", "kwdefaults"):
        if (defaults := getattr(function, f"__{kind}__")) is not None:
            yield kind, "", defaults, {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        inner = contents_of(cell)
        yield "cell", name, cell, {name: inner}
        if depth < _MOST_WRAPPERS and isinstance(inner, (FunctionType, MethodType, functools.partial)):
            yield from ((part, f"{name}.{inside}", *rest) for part, inside, *rest in _parts(inner, depth + 1))


def _taken_apart(hook: Any) -> tuple[Any, Any]:
    """The object that a hook belongs to, and its function."""
    if isinstance(hook, MethodType):
        return hook.__self__, hook.__func__
    return (None, hook) if isinstance(hook, FunctionType) else (hook, vars(type(hook)).get("__call__"))


def contents_of(cell: CellType) -> Any:
    """What is in a cell; None if there is nothing yet."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def names_in(code: CodeType) -> set[str]:
    """Names in code, and in the functions inside."""
    return {*code.co_names}.union(*(names_in(one) for one in code.co_consts if isinstance(one, CodeType)))
