"""Locate: where a tensor that is no argument is kept, so that each call reads it anew."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any

import torch

from foregrad.core.generated import Check
from foregrad.core.source import Source
from foregrad.torch_private.modules import TENSOR_TABLES

#: How names of what holds tensors and variables begin, in generated functions.
OWNER = "owner"


@dataclass(frozen=True)
class Location:
    """A place that holds a tensor: an entry of a module's dict, a closure's cell, a variable, an item, an attribute.

    `other_places` are other places that held the same tensor: tied weights.
    """

    role: str  # "param", "buffer" or "closure"
    name: str
    owner: Any
    key: Any
    table: str | None = None  # "_parameters" or "_buffers" of a module
    other_places: tuple[Location, ...] = ()
    is_attribute: bool = False

    def emit(self, source: Source, *, missing_ok: bool = False) -> str:
        owner = source.name(OWNER, self.owner)
        if isinstance(self.owner, CellType):
            return f"{owner}.cell_contents"
        if self.is_attribute:
            return f"{owner}.{self.key}"
        missing_ok = missing_ok and isinstance(self.owner, (dict, torch.nn.Module))
        table = f"{owner}.{self.table}" if self.table is not None else owner
        return f"{table}.get({self.key!r})" if missing_ok else f"{table}[{self.key!r}]"

    def read(self) -> Any:
        """What is kept there now; None if nothing is."""
        if isinstance(self.owner, CellType):
            return self.owner.cell_contents if _is_filled(self.owner) else None
        if self.is_attribute:
            return getattr(self.owner, self.key, None)
        table = self.owner if self.table is None else getattr(self.owner, self.table)
        if isinstance(table, dict):
            return table.get(self.key)
        return table[self.key] if self.key < len(table) else None

    def covers(self, other: Location) -> bool:
        """Whether this is the other place too."""
        owner = self.owner if self.table is None else getattr(self.owner, self.table)
        is_here = owner is other.owner and self.key == other.key
        return is_here or any(place.covers(other) for place in self.other_places)


@dataclass(frozen=True)
class Variable:
    """A variable that a function can reach: the cell or dict that holds it, its key there, and its value."""

    name: str
    owner: Any
    key: str | None
    value: Any

    def emit(self, source: Source) -> str:
        owner = source.name(OWNER, self.owner)
        return f"{owner}.cell_contents" if self.key is None else f"{owner}.get({self.key!r})"

    def assign(self, value: Any) -> None:
        if self.key is None:
            self.owner.cell_contents = value
        else:
            self.owner[self.key] = value


@dataclass(frozen=True)
class AsHolder:
    """A variable as something with one entry."""

    variable: Variable
    name: str = ""

    def read(self) -> dict[str, Any]:
        one = self.variable
        return {one.name: one.owner.cell_contents if one.key is None else one.owner.get(one.key)}

    def put(self, key: str, value: Any) -> None:
        self.variable.assign(value)


def locate(
    tensors: Iterable[Any], modules: dict[int, tuple[str, torch.nn.Module]], function: Any
) -> dict[int, Location]:
    """The place of each tensor, by its id, as far as one is found."""
    wanted = {id(t) for t in tensors}
    found: dict[int, Location] = {}
    for tensor, location in _places(modules, function):
        if id(tensor) not in wanted:
            continue
        first = found.get(id(tensor))
        if first is None:
            found[id(tensor)] = location
        elif location.table is not None and first.table is not None:
            found[id(tensor)] = replace(first, other_places=(*first.other_places, location))
    return found


def write_same(source: Source, location: Location, name: str) -> None:
    """Write that a tensor is what is kept at a place, and at all that held the same."""
    with source.block("try:"):
        for place in (location, *location.other_places):
            source.check(Check(f"{place.emit(source, missing_ok=True)} is not {name}"))
    with source.block("except (KeyError, IndexError, ValueError, AttributeError):"):
        source.line("return MISS")


def with_places(found: dict[int, Location], more: dict[int, list[Location]]) -> dict[int, Location]:
    """Places with further ones: the first of a tensor is where it is read, the others must hold the same."""
    every = dict(found)
    for tensor, places in more.items():
        first, *rest = places if tensor not in found else [found[tensor], *places]
        every[tensor] = replace(first, other_places=(*first.other_places, *rest))
    return every


def _places(modules: dict[int, tuple[str, torch.nn.Module]], function: Any) -> Iterator[tuple[Any, Location]]:
    for prefix, top in modules.values():
        for path, module in top.named_modules(prefix=prefix):
            for table, role in zip(TENSOR_TABLES, ("param", "buffer"), strict=True):
                for key, tensor in getattr(module, table).items():
                    yield tensor, Location(role, f"{path}.{key}" if path else key, module, key, table)
            for key, value in vars(module).items():
                if isinstance(value, torch.Tensor):
                    yield value, Location("closure", f"{path}.{key}" if path else key, vars(module), key)
    for variable in variables(function):
        if isinstance(variable.value, torch.Tensor):
            yield variable.value, Location("closure", variable.name, variable.owner, variable.key)


def generators(modules: dict[int, tuple[str, torch.nn.Module]], function: Any) -> list[Variable]:
    """Where generators are kept: variables of a function and of functions that it can reach, attributes of modules."""
    found: list[Variable] = []
    tops, functions = list(modules.values()), [function]
    seen = {id(module) for _, module in tops} | {id(function)}
    while tops or functions:
        reached = variables(functions.pop()) if functions else _attributes(*tops.pop())
        for one in reached:
            if isinstance(one.value, torch.Generator):
                found.append(one)
            elif id(one.value) not in seen and isinstance(one.value, (FunctionType, MethodType, torch.nn.Module)):
                seen.add(id(one.value))
                if isinstance(one.value, torch.nn.Module):
                    tops.append((one.name, one.value))
                elif not (one.value.__module__ or "").startswith("torch."):
                    functions.append(one.value)
    return found


def _attributes(prefix: str, top: torch.nn.Module) -> Iterator[Variable]:
    """Attributes of a module and of those inside it, and the functions that they run."""
    for path, module in top.named_modules(prefix=prefix):
        for key, value in vars(module).items():
            yield Variable(f"{path}.{key}" if path else key, vars(module), key, value)
        forward = inspect.getattr_static(type(module), "forward")  # a descriptor of TorchScript's cannot be asked
        yield Variable("forward", vars(type(module)), "forward", forward)


def variables(function: Any) -> list[Variable]:
    """Variables that a function can reach: attributes of the object it is bound to, its closure, its globals."""
    function = inspect.unwrap(function)
    found: list[Variable] = []
    owner = getattr(function, "__self__", None)
    if owner is not None and hasattr(owner, "__dict__"):
        found += [Variable(key, vars(owner), key, value) for key, value in vars(owner).items()]
    function = getattr(function, "__func__", function)
    code = getattr(function, "__code__", None)
    if code is None:
        return found
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if _is_filled(cell):
            found.append(Variable(name, cell, None, cell.cell_contents))
    for name in dict.fromkeys(_names_in(code)):
        if name in function.__globals__:
            found.append(Variable(name, function.__globals__, name, function.__globals__[name]))
    return found


def _names_in(code: CodeType) -> Iterator[str]:
    """Names of globals and attributes in a function, and in those that are written inside it."""
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _is_filled(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018  reading it is the test
    except ValueError:
        return False
    return True
