"""Reach: from a function to every object that it can have read while it ran, and the guard of all these.

The walk begins at the function, its state and the globals that executed code names. Of an object it looks at the
attributes that executed code asks for by name; of a container at all it holds; of a function that ran, at its code,
defaults and closure. What torch, NumPy and Python hold is known by what it is, not by what it holds in turn.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.generated import Line
from foregrad.record.lift.locate import Location
from foregrad.record.python.executed_code import Reads, Scope
from foregrad.runtime.guards.files import make_file
from foregrad.runtime.guards.nodes import AttributesNode
from foregrad.runtime.guards.python_guard import PythonGuard
from foregrad.runtime.guards.python_objects import is_closed
from foregrad.runtime.guards.walk import NO_BOUNDARY, Boundary, GuardWalk, KnownTensors, ObjectPart
from foregrad.runtime.guards.walk_classes import class_node, make_class
from foregrad.runtime.guards.walk_code import make_closed, make_from_fields, make_function, make_module, make_same
from foregrad.runtime.guards.walk_data import make_array, make_container, make_object
from foregrad.runtime.guards.walk_modules import make_torch_module

_MAKERS = (
    make_file,
    make_container,
    make_function,
    make_torch_module,
    make_class,
    make_module,
    make_from_fields,
    make_array,
    make_object,
)
_CLOSED = (make_closed, make_same)

#: A name for what the walk begins at, and the object.
Root = tuple[str, Any]


@dataclass(frozen=True, eq=False)
class Reached:
    """The guard of everything that was read, and where tensors were found that have no place yet."""

    guard: PythonGuard
    places: dict[int, list[Location]]
    met: frozenset[int] = frozenset()  # ids of what was looked for
    names: frozenset[str] = frozenset()  # of attributes that were asked for, also by an `attrgetter`

    @classmethod
    def of(cls, walk: GuardWalk) -> Reached:
        frozen = tuple(f"{name}: {why}" for name, why in walk.frozen.items())
        return cls(PythonGuard(walk.holders, walk.empty, frozen), walk.places, names=walk.reads.names)


def reach(
    roots: Iterable[Root],
    reads: Reads,
    scopes: Iterable[Scope],
    tensors: KnownTensors,
    home: str = "",
    boundary: Boundary = NO_BOUNDARY,
) -> GuardWalk:
    """Walk from the roots and the scopes. Variables of the module `home` go by their names alone."""
    walk = GuardWalk(reads, _MAKERS, _CLOSED, tensors, boundary)
    for name, value in roots:
        walk.node(value, name)
    for module in sorted(reads.imported.intersection(sys.modules)):
        walk.node(sys.modules[module], module)
    missing: set[str] = set()
    for scope in scopes:
        module = str(scope.variables.get("__name__"))
        if is_closed(module) and vars(sys.modules[module]) is not scope.variables:
            continue  # a copy, made for one call
        if boundary.is_outside(module):
            continue
        _scope(walk, scope, "" if module == home else module, closed=is_closed(module))
        missing |= {name for name in scope.names if name not in scope.variables}
    _scope(walk, Scope(vars(builtins), frozenset(missing)), "builtins", closed=True)
    class_node(walk, torch.Tensor)
    walk.finish()
    return walk


def _scope(walk: GuardWalk, scope: Scope, name: str, *, closed: bool) -> None:
    holder = AttributesNode(name, scope.variables, scope.names, home=str(scope.variables.get("__name__")))
    parts = [ObjectPart(holder.inner(key), scope.variables[key], scope.variables, key) for key in holder.keys]
    walk.hold(holder, parts, closed=closed)


@dataclass(frozen=True)
class Lost:
    """Globals of code that belongs to no module: no other process finds them."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class PythonReads:
    """What a guard was made from, so that another process can make it again: what is found there is what counts."""

    target: Any  # the function or module
    state: tuple[Any, ...]
    modules: tuple[torch.nn.Module | type, ...]  # that were called; classes of those that the function makes
    reads: Reads
    lost: Lost | None = None
    module_checks: tuple[Line, ...] | None = ()  # what a file checks in its place, if one can

    def make(self) -> PythonGuard:
        return Reached.of(self.reach(self.scopes(), KnownTensors())).guard

    def scopes(self) -> list[Scope]:
        """The variables that were read, in the modules of this process."""
        return [Scope(vars(sys.modules[name]), names) for name, names in self.reads.globals if name in sys.modules]

    def reach(
        self,
        scopes: Iterable[Scope],
        tensors: KnownTensors,
        more: Iterable[Root] = (),
        boundary: Boundary = NO_BOUNDARY,
    ) -> GuardWalk:
        """Walk from the target, its state, and further roots."""
        declared = frozenset(id(one) for one in self.state if not isinstance(one, (torch.nn.Module, torch.Tensor)))
        roots = [self.target, *self.state, *self.modules]
        named = [(_name(one), one) for one in roots if not isinstance(one, torch.Tensor)]
        scopes, more, known = list(scopes), list(more), replace(tensors, declared=declared)
        found = reach([*named, *more], self.reads, scopes, known, self.home, boundary)
        if found.asked_by_getters <= self.reads.names:
            return found
        reads = replace(self.reads, names=self.reads.names | found.asked_by_getters)
        return replace(self, reads=reads).reach(scopes, tensors, more, boundary)

    @property
    def home(self) -> str:
        function = getattr(self.target, "__func__", self.target)
        return str(getattr(function, "__globals__", {}).get("__name__", ""))


def _name(value: Any) -> str:
    return str(getattr(value, "__qualname__", "" if isinstance(value, torch.nn.Module) else type(value).__name__))
