"""Locate: where a tensor that is no argument is kept, so that each call reads it anew."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from types import CellType
from typing import Any

import torch

from foregrad.runtime.source import Source


@dataclass(frozen=True)
class Location:
    """A place that holds a tensor: an entry of a module's dict, a closure's cell, or a global variable."""

    role: str  # "param", "buffer" or "closure"
    name: str
    owner: Any
    key: str | None
    table: str | None = None  # "_parameters" or "_buffers" of a module

    def emit(self, source: Source) -> str:
        owner = source.name("owner", self.owner)
        if self.table is not None:
            return f"{owner}.{self.table}[{self.key!r}]"
        if isinstance(self.owner, CellType):
            return f"{owner}.cell_contents"
        return f"{owner}[{self.key!r}]"


def locate(
    tensors: Iterable[torch.Tensor], modules: dict[int, tuple[str, torch.nn.Module]], function: Any
) -> dict[int, Location]:
    """The place of each tensor, by its id, as far as one is found."""
    wanted = {id(t) for t in tensors}
    found: dict[int, Location] = {}
    for prefix, top in modules.values():
        for path, module in top.named_modules(prefix=prefix, remove_duplicate=True):
            for table, role in (("_parameters", "param"), ("_buffers", "buffer")):
                for key, tensor in getattr(module, table).items():
                    if id(tensor) in wanted and id(tensor) not in found:
                        name = f"{path}.{key}" if path else key
                        found[id(tensor)] = Location(role, name, module, key, table)
            for key, value in vars(module).items():
                if id(value) in wanted and id(value) not in found and isinstance(value, torch.Tensor):
                    found[id(value)] = Location("closure", f"{path}.{key}" if path else key, vars(module), key)
    for name, owner, key, value in variables(function):
        if id(value) in wanted and id(value) not in found and isinstance(value, torch.Tensor):
            found[id(value)] = Location("closure", name, owner, key)
    return found


def variables(function: Any) -> list[tuple[str, Any, str | None, Any]]:
    """Variables that a function can reach: name, the cell or dict that holds it, its key there, and its value."""
    function = inspect.unwrap(function)
    result: list[tuple[str, Any, str | None, Any]] = []
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "__dict__"):
        result += [(key, vars(owner), key, value) for key, value in vars(owner).items()]
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return result
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        value = cell.cell_contents if _is_filled(cell) else None
        result.append((name, cell, None, value))
    for name in code.co_names:
        if name in function.__globals__:
            result.append((name, function.__globals__, name, function.__globals__[name]))
    return result


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  reading it is the test
    except ValueError:
        return False
    return True
