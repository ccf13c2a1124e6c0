"""Trace: what one run of a function did, and one backward of it, as a frozen value.

It holds ops over aliases, what tensors look like, and no tensor but constants: whatever is built from it needs nothing
that was alive while the function ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.spec import Spec
from foregrad.core.wrapper_autograd import Whole
from foregrad.core.wrapper_subclass import GradientForm, WrapperRecipe
from foregrad.record.ops import Alias, Op, Storage
from foregrad.record.python.python_calls import PythonCall
from foregrad.record.questions import Question
from foregrad.torch_private.pytree import TreeSpec


@dataclass(frozen=True, eq=False, slots=True)
class TracedInput:
    """A plain tensor that the function was given or reached for."""

    alias: Alias
    role: str
    name: str
    spec: Spec
    base: TracedInput | None  # the input that this one is a view of, if they overlap
    counter: TracedInput | None  # another input, no view of this one nor its base, with which it shares its versions
    version: int  # on entry
    offset: int
    num_bytes: int  # of its whole memory
    is_argument: bool
    is_leaf: bool
    is_view: bool
    is_hidden: bool  # the base of arguments that is no argument itself
    is_told: bool  # the function has told it to require a gradient
    is_grown: bool  # the function has given it more memory

    @property
    def required_grad(self) -> bool:
        return self.spec.requires_grad


@dataclass(frozen=True, eq=False, slots=True)
class TracedWrapper:
    """An input that wraps others."""

    index: int
    name: str
    recipe: WrapperRecipe
    parts: tuple[TracedInput, ...]
    paths: tuple[str, ...]  # the attributes that lead to each part
    required_grad: bool
    is_leaf: bool
    is_view: bool
    num_writes: int  # by the function


AnyInput = TracedInput | TracedWrapper


@dataclass(frozen=True, eq=False, slots=True)
class TracedBase:
    """A tensor that others are views of, or that is no view: what the program returns, or what it writes to."""

    alias: Alias
    kind: str  # "input": one of the inputs; "fresh": new memory; "alias": an input's memory, another history
    input: TracedInput | None
    name: str  # where it stands among the results
    version: int  # after the forward
    needs_tangent: bool  # it has a history of its own, which a write to it must show to autograd
    requires_grad: bool
    is_root: bool  # the first in its memory
    is_function_view: bool  # a custom Function made it as a view


@dataclass(frozen=True, eq=False, slots=True)
class TracedBackward:
    """One run of the autograd engine."""

    phase: int
    start: int  # its first op
    end: int
    tangents: tuple[Alias | None, ...]
    gradients: tuple[Alias | None, ...]  # in parts where they wrap others
    wholes: tuple[Whole | None, ...]  # how what arrived is made of its parts; empty if all is plain
    num_slots: int  # at which gradients arrive
    error: Exception | None


@dataclass(frozen=True, slots=True)
class EngineRun:
    """A backward inside the function that goes on outside: from which inputs, with which gradients."""

    place: int  # how many ops come before
    inputs: tuple[int, ...]  # objects
    gradients: tuple[int, ...]  # objects
    retain_graph: bool
    create_graph: bool


@dataclass(frozen=True, slots=True)
class DeadEnd:
    """Nodes that lead to no input: only `backward()` runs them, and nothing but an error can come of it."""

    saved: frozenset[int]  # objects
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Survey:
    """What lies behind some tensors in the autograd graph."""

    reached: tuple[bool, ...]  # for each slot
    saved: frozenset[int]  # objects that nodes on the way to the slots have saved
    dead_ends: tuple[DeadEnd | None, ...]  # for each source


@dataclass(frozen=True, slots=True)
class OuterRef:
    """A tensor that wraps others, by its place among the inputs (`w0`) or among what is made for the results (`u0`)."""

    letter: str
    index: int

    def __str__(self) -> str:
        return f"{self.letter}{self.index}"


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor object, by its number."""

    object: int


@dataclass(frozen=True, eq=False, slots=True)
class Wrap:
    """A result to make: around these objects, with this version; `form` is that of its gradient, if it has one."""

    recipe: WrapperRecipe
    objects: tuple[int, ...]
    form: GradientForm | None
    version: int


@dataclass(frozen=True, eq=False, slots=True)
class ResultView:
    """A result that is a view of an input or of another result: each call makes it by the same function."""

    func: Any
    args: Any  # with `OuterRef`s
    kwargs: dict[str, Any]
    item: int | None
    grad_enabled: bool


@dataclass(frozen=True, slots=True)
class Wrapping:
    """Inputs that wrap others, results that do, and gradients that do."""

    inputs: tuple[TracedWrapper, ...] = ()
    made: tuple[Wrap | ResultView, ...] = ()
    rewritten: tuple[tuple[TracedWrapper, OuterRef], ...] = ()  # inputs that get the history of what was made
    gradients: tuple[Whole | None, ...] = ()  # for each gradient, how it is made; empty if all are plain


@dataclass(frozen=True, eq=False)
class Trace:
    """A forward, the backwards that were recorded before the last one, and the last one if there is one."""

    ops: tuple[Op, ...]  # to the end of the last backward
    num_forward: int
    phase: int  # of its forward: 0, or that of a backward which is differentiated
    earlier: tuple[TracedBackward, ...]
    backward: TracedBackward | None
    survey: Survey | None  # of what lies between forward and backward

    # what comes in
    inputs: tuple[TracedInput, ...]
    gradients: tuple[AnyInput, ...]  # those that get one
    questions: tuple[Question, ...]  # that Python has asked of the data, in order
    python_calls: tuple[PythonCall, ...]  # that each call makes, in order
    constants: Mapping[Storage, torch.Tensor]
    generators: Mapping[torch.Generator, str]  # from which it draws, and their names
    joined: frozenset[Storage]  # of which a program takes one input alone, the base
    reshaped: frozenset[TracedInput]  # views with a gradient whose geometry the function changes
    live: frozenset[Storage]  # which backward reads as it finds them
    live_objects: frozenset[int]  # inputs that an earlier program reads so

    # what can be seen afterwards
    bases: tuple[TracedBase, ...]
    escaping: tuple[int, ...]  # objects that are to be made again from bases
    results: tuple[Any, ...]  # leaves of the result: `Ref`s, `OuterRef`s, `ItemOf`s, and plain values
    structure: TreeSpec
    returned: frozenset[int]  # objects among them
    stored: tuple[tuple[str, Any], ...]  # what it leaves in modules and declared state, by name
    grads: tuple[tuple[Any, Any], ...]  # which tensors get which .grad
    replaced_grads: tuple[tuple[int, TracedInput], ...]  # inputs whose .grad is replaced, and the one on entry
    retained: tuple[int, ...]  # objects, no leaves, that are to keep their gradient
    wrapping: Wrapping
    leaves_grad_mode: bool

    # how tensors came to be as they are
    renames: Mapping[int, tuple[Op, ...]]  # changes of metadata, by object
    objects: tuple[Alias, ...]  # each tensor object as it is at the end
    roots: Mapping[Storage, Alias]  # the first alias of each memory
    shown: Mapping[Storage, tuple[Alias, ...]]  # all aliases of the memory of inputs
    grown: frozenset[Storage]
    leaves: frozenset[int]  # objects, of those that can be seen and what they are made of
    flagged: frozenset[int]  # those of them that were told to require a gradient
    silent: frozenset[int]  # ops that move no version counter, though they would by themselves
    unshared: frozenset[int]  # ops that make a tensor with a version counter of its own
    flags: tuple[tuple[int, int, bool], ...]  # objects told to require a gradient or not, and after which op
    hooks: tuple[tuple[int, Any], ...]  # of the function's, on inputs
    runs: tuple[EngineRun, ...]
    has_sizes: bool  # that vary
    device: torch.device | None  # for which ghosts on meta stand

    @property
    def tangents(self) -> list[TracedBase]:
        """Bases at which the first backward starts."""
        return [base for base in self.bases if base.needs_tangent]
