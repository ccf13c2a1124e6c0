"""Assumptions: everything that a capture relied on, for the guards of its call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.record.ghosts.sparse import OldSparseGrad
from foregrad.record.lift.declared_state import Declared
from foregrad.record.lift.locate import Location, Variable
from foregrad.record.symbols.dimensions import Sizes
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import AnyInput, TracedInput, TracedWrapper
from foregrad.runtime.guards.python_guard import PythonGuard
from foregrad.runtime.guards.reach import PythonReads


@dataclass(frozen=True, eq=False)
class Assumptions:
    """Everything that a capture relied on, apart from the code itself."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    names: tuple[str, ...]  # of arguments, in their order
    inputs: tuple[TracedInput, ...]
    wrappers: tuple[TracedWrapper, ...]  # inputs that wrap others
    reals: Mapping[AnyInput, torch.Tensor]  # the tensors that they are
    locations: dict[Any, Location]  # of tensors that are no arguments, by object, or by the input that wraps others
    modules: tuple[torch.nn.Module, ...]  # modules that the function called
    path: Callable[[torch.nn.Module], str]  # of such a module
    python: PythonGuard  # of what it read in Python
    keeps_order: bool  # it can tell the order of keyword arguments
    python_again: PythonReads  # how to make that again
    variables: tuple[Variable, ...]  # variables of the function's closure
    generators: tuple[Variable, ...]  # where those are kept that it draws from, if they are no arguments
    checks_overlap: bool  # the program writes to inputs
    offset_sensitive: frozenset[int]
    grads: tuple[tuple[AnyInput, AnyInput | OldSparseGrad | None], ...]  # inputs whose .grad matters, and what it is
    hooks: dict[AnyInput, tuple[Any, ...]]  # those of inputs that a gradient inside the function passes
    answers: dict[TracedInput, dict[str, Any]]  # what inputs were asked by name, and have said
    has_attention: bool  # for which torch chooses one of several kernels
    passed_by: frozenset[TracedInput]  # views whose gradient goes to what they are views of
    apart: tuple[tuple[Callable[..., bool], tuple[AnyInput, ...]], ...]  # what must not hold of which inputs
    unread: frozenset[int]  # objects of which it only matters whether they are there
    declared: Declared
    numbers: tuple[Expression, ...]  # that the program takes or the call stores
    given: Mapping[Any, Expression]  # numbers among the arguments that vary, by their places
    sizes: Sizes | None  # that vary

    @property
    def late(self) -> set[TracedWrapper]:
        """Inputs that wrap others and are found where gradients and declared state are."""
        grads = {grad for _, grad in self.grads if isinstance(grad, TracedWrapper)}
        found = {one for one in self.wrappers if one in grads or id(self.reals[one]) in self.declared.tensors}
        return found - set(self.locations)
