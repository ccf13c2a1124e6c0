"""Inputs: a ghost for every real tensor that the function is given or reaches for.

Tensors that overlap in memory get ghosts that overlap in the same way: views of one base. A tensor that has a
history outside gets one here too, so that writing to it is as legal as it is in eager, and so that the gradient of
the value *before* the write has a place to arrive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

from foregrad.core.attach_history import Attached
from foregrad.core.errors import CaptureError
from foregrad.core.history import (
    attributes_of,
    base_of,
    gets_no_gradient,
    hidden_bases,
    is_flagged,
    leads_nowhere,
    shares_version,
)
from foregrad.core.shared_memory import groups_in_bases, overlap
from foregrad.core.sparse import is_sparse
from foregrad.core.spec import Spec
from foregrad.core.wrapper_subclass import WrapperRecipe, has_parts, is_wrapper, named_parts, parts
from foregrad.record.ghosts.allocate import ghost_over, ghost_storage, new_ghost
from foregrad.record.ghosts.sparse import OldSparseGrad
from foregrad.record.lift.input_base import Entered
from foregrad.record.lift.wrapper_inputs import Outer, make_outer
from foregrad.record.ops import Alias
from foregrad.record.origins import where
from foregrad.record.recorder import Recorder
from foregrad.record.symbols.dimensions import fakes
from foregrad.record.trace import TracedInput, TracedWrapper
from foregrad.record.user_objects import Held, RealTensor
from foregrad.torch_private.autograd import version_of
from foregrad.torch_private.autograd_engine import apply_of
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.fake_tensors import FakeTensor
from foregrad.torch_private.tensors import storage_key, view_base
from foregrad.torch_private.transforms import no_transforms


@dataclass(eq=False, slots=True, weakref_slot=True)
class Lifted(Entered):
    """A plain tensor that is an input, and its ghost."""

    held: weakref.ref[RealTensor]  # the real tensor, while the capture or the recording holds it
    ghost: torch.Tensor
    alias: Alias
    slot: torch.Tensor | None  # the leaf that stands for the value on entry, if it is no view of another input
    base: Lifted | None  # the input that this one is a view of, if they overlap
    edge: GradientEdge | None  # where the gradient of the value on entry arrives
    entry_node: Any  # its history on entry
    version: int  # of the ghost, on entry
    is_argument: bool
    spec: Spec
    is_leaf: bool
    is_view: bool
    offset: int
    num_bytes: int  # of its whole memory
    is_hidden: bool = False  # the base of arguments that is no argument itself
    counter: Lifted | None = None  # another input, no view of this one nor its base, with which it shares its versions
    role: str = "input"
    name: str = ""
    _reference: weakref.ref[torch.Tensor] | None = None

    @property
    def real(self) -> torch.Tensor | None:
        """The real tensor; None once the capture is over: from then on each call brings its own."""
        held = self.held()
        return None if held is None else held.tensor

    @property
    def was_rebased(self) -> bool:
        """Whether autograd gave the tensor another history while recording, itself or through its base."""
        return self.history is not self.entry_node

    @property
    def history(self) -> Any:
        """The node in the autograd graph where the tensor, or its base that nobody sees, comes from."""
        return _history(self.ghost, self.base)

    @property
    def reachable(self) -> torch.Tensor | None:
        """The real tensor, if the function can still have got hold of it by itself."""
        if self.real is not None or self.is_argument or self.is_hidden or self._reference is None:
            return self.real
        return self._reference()


class Inputs:
    """Every tensor lifted so far, by the object that it is."""

    def __init__(self, recorder: Recorder, objects: Held) -> None:
        self._recorder = recorder
        self._objects = objects
        self._by_id: dict[int, Lifted] = {}
        self._by_storage: dict[int, list[Lifted]] = {}
        self._by_ghost: dict[int, Lifted] = {}
        self._outer_by_id: dict[int, Outer] = {}
        self._outer_by_ghost: dict[int, Outer] = {}
        self._places: dict[int, Callable[[], Any]] = {}
        self._sparse_parts: dict[int, tuple[Any, list[torch.Tensor]]] = {}  # while the tensor is held
        self.late: set[Lifted] = set()  # first met in a backward
        self.on_lift: Callable[[Lifted | Outer], None] = lambda lifted: None
        self.all: list[Lifted] = []  # plain tensors: those given, and the parts of those that wrap others
        self.outer: list[Outer] = []
        self._traced: dict[Lifted, TracedInput] = {}
        self._traced_outer: dict[Outer, TracedWrapper] = {}
        self.apart: list[Lifted] = []  # arguments of varying sizes that share memory: none of them may be written

    @property
    def names(self) -> dict[int, str]:
        """Those of arguments, by the id of the tensor."""
        return self._objects.now.argument_names

    def keep_places(self, places: dict[int, Callable[[], Any]]) -> None:
        """Remember where inputs are kept, by object: what is there at a later backward stands for them."""
        self._places = places

    def let_go(self) -> None:
        """Forget where inputs are kept: who could put others there is gone."""
        self._places = {}

    def reachable(self, one: TracedInput) -> torch.Tensor | None:
        """The real tensor behind an input, if the function can still have got hold of it by itself."""
        return next(lifted.reachable for lifted in self.all if lifted.alias is one.alias)

    def traced(self, lifted: Lifted) -> TracedInput:
        """What a trace says of an input, once inputs have their names."""
        if lifted not in self._traced:
            self._traced[lifted] = self._described(lifted, self.traced)
        return self._traced[lifted]

    def as_it_is(self, lifted: Lifted) -> TracedInput:
        """The same while the function still runs."""
        return self._described(lifted, self.as_it_is)

    def _described(self, lifted: Lifted, other: Callable[[Lifted], TracedInput]) -> TracedInput:
        return TracedInput(
            alias=lifted.alias,
            role=lifted.role,
            name=lifted.name,
            spec=lifted.spec,
            base=None if lifted.base is None else other(lifted.base),
            counter=None if lifted.counter is None else other(lifted.counter),
            version=lifted.version,
            offset=lifted.offset,
            num_bytes=lifted.num_bytes,
            is_argument=lifted.is_argument,
            is_leaf=lifted.is_leaf,
            is_view=lifted.is_view,
            is_hidden=lifted.is_hidden,
            is_told=is_flagged(lifted.ghost) and not lifted.required_grad,
            is_grown=self._recorder.memory[lifted.alias.storage].is_grown,
        )

    def traced_outer(self, outer: Outer) -> TracedWrapper:
        """The same of one that wraps others."""
        if outer not in self._traced_outer:
            self._traced_outer[outer] = TracedWrapper(
                index=outer.index,
                name=outer.name,
                recipe=outer.recipe,
                parts=tuple(self.traced(self._by_ghost[id(part.ghost)]) for part in outer.parts),
                paths=outer.paths,
                required_grad=outer.required_grad,
                is_leaf=outer.is_leaf,
                is_view=outer.is_view,
                num_writes=outer.bumps,
            )
        return self._traced_outer[outer]

    def ghost_of(self, value: Any) -> Any:
        """The ghost of a tensor that was lifted; anything else as it is."""
        lifted = self.find(value) if isinstance(value, torch.Tensor) else None
        return value if lifted is None else lifted.ghost

    def find(self, real: torch.Tensor) -> Lifted | Outer | None:
        """The input that a tensor is. After the capture that is asked of what the function reaches for by itself, where
        a later backward runs its Python again; an id may have passed to another tensor by then."""
        found = self._by_id.get(id(real))
        if found is not None and found.reachable is real:
            return found
        if not self._objects.is_capturing:
            places = self._places  # what only a backward reads may have been replaced since the call
            known = [lifted for lifted in self.all if lifted not in self.late]
            kept = [lifted for lifted in known if places.get(lifted.alias.object, _nothing)() is real]
            return kept[0] if kept else None
        outer = self._outer_by_id.get(id(real))
        return outer if outer is not None and outer.real is real else None

    def of_ghost(self, ghost: torch.Tensor) -> Lifted | None:
        return self._by_ghost.get(id(ghost))

    def outer_of(self, ghost: torch.Tensor) -> Outer | None:
        """The input that wraps others whose ghost this is."""
        return self._outer_by_ghost.get(id(ghost))

    def entered(self, ghost: torch.Tensor) -> Lifted | Outer | None:
        """The input, plain or not, whose ghost this is."""
        return self._by_ghost.get(id(ghost)) or self._outer_by_ghost.get(id(ghost))

    def lift_arguments(self, tensors: Sequence[torch.Tensor], definition: str) -> None:
        for tensor in tensors:
            self._check_kind(tensor, definition)
        plain = {id(part): part for tensor in tensors for part in self._parts_of(tensor)}
        for group in groups_in_bases(list(plain.values()), hidden_bases):
            if len(group) == 1:
                self._lift_alone(group[0], is_argument=True)
            elif self._recorder.sizes is not None and not any(one.requires_grad for one in group):
                self.apart += [self._lift_alone(one, is_argument=True) for one in group]
            else:
                self._lift_group(group, is_argument=True)
        for tensor in tensors:
            if has_parts(tensor):
                self._lift_outer(tensor, is_argument=True)

    def lift(self, real: torch.Tensor) -> torch.Tensor:
        """The ghost of a tensor that the function reached for by itself."""
        found = self.find(real)
        if found is not None:
            return found.ghost
        with no_dispatch_modes(), no_transforms(), fakes(self._recorder.sizes):
            self._check_kind(real)
            if not has_parts(real):
                self._check_is_real(real)
                return self._lift_new(real)
            for part in self._parts_of(real):
                if self.find(part) is None:
                    self._lift_new(part)
            return self._lift_outer(real, is_argument=False)

    def _check_is_real(self, tensor: torch.Tensor) -> None:
        """Refuse what has the memory of a ghost and was made past torch's ops, such as a Parameter: it has no data."""
        if self._recorder.owns(tensor):
            raise CaptureError(
                f"the function makes a {type(tensor).__name__} {Spec.of(tensor).frozen()} of a tensor, past torch's "
                f"ops, and returns or keeps it.\n{where(self._recorder.module)}\nReturn the tensor, or make it outside."
            )

    def _lift_outer(self, real: torch.Tensor, *, is_argument: bool) -> torch.Tensor:
        """The ghost of a tensor that wraps others, whose parts are lifted."""
        lifted = [self._by_id[id(part)] for part in self._parts_of(real)]
        held, here = self._objects.now.hold(real), self._recorder.here
        outer = make_outer(real, held, lifted, len(self.outer), is_argument=is_argument, here=here)
        self._outer_by_id[id(real)] = self._outer_by_ghost[id(outer.ghost)] = outer
        self.outer.append(outer)
        self.on_lift(outer)
        return outer.ghost

    def _parts_of(self, real: torch.Tensor) -> list[torch.Tensor]:
        """The same objects each time: those of a sparse tensor are lifted, and then looked up."""
        if not is_sparse(real) or is_wrapper(real):
            return parts(real)
        held, found = self._sparse_parts.get(id(real), (_nothing, []))
        known = held()
        if known is None or known.tensor is not real:
            found = parts(real)
            self._sparse_parts[id(real)] = (self._objects.now.hold(real), found)
        return found

    def _lift_new(self, real: torch.Tensor) -> torch.Tensor:
        for other in self._by_storage.get(storage_key(real), ()):
            if other.real is not None and overlap(other.real, real):
                return self._lift_into(other, real).ghost
        return self._lift_alone(real, is_argument=False).ghost

    def _check_kind(self, tensor: torch.Tensor, definition: str | None = None) -> None:
        it = f"the argument {self.names[id(tensor)]}" if id(tensor) in self.names else "a tensor that the function uses"
        is_strided, is_dynamic = tensor.layout is torch.strided, self._recorder.sizes is not None
        if isinstance(tensor, OldSparseGrad):
            raise CaptureError(
                f"the function uses a sparse .grad from before the call.\n{where(self._recorder.module)}\n"
                "Call zero_grad() first, or use dense gradients (sparse=False)."
            )
        is_plain_sparse = is_sparse(tensor) and _is_known_type(tensor) and not is_dynamic and not tensor.requires_grad
        is_known = is_strided and is_wrapper(tensor) and not is_dynamic
        if is_plain_sparse or (is_known and WrapperRecipe.of(tensor) == WrapperRecipe.of(tensor)):
            for (path, _), part in zip(named_parts(tensor), self._parts_of(tensor), strict=True):
                if id(tensor) in self.names:
                    self.names.setdefault(id(part), self.names[id(tensor)] + path)
                self._check_kind(part, definition)
            return
        if is_strided and is_wrapper(tensor) and is_dynamic:
            what, instead = f"is a {type(tensor).__name__}", "Symbolic sizes need plain tensors: pass dynamic=False."
        elif is_strided and is_wrapper(tensor):
            what, instead = (
                f"is a {WrapperRecipe.of(tensor)}, which is not equal to itself",
                "Give its class an __eq__ for what __tensor_flatten__ returns.",
            )
        elif is_sparse(tensor) and is_dynamic:
            what, instead = f"has the layout {tensor.layout}", "Symbolic sizes need plain tensors: pass dynamic=False."
        elif is_sparse(tensor) and tensor.requires_grad:
            what = f"has the layout {tensor.layout} and needs a gradient"
            instead = "Pass its indices and its values, and make the sparse tensor of these inside."
        elif not is_strided:
            what, instead = (
                f"has the layout {tensor.layout}",
                "Pass strided tensors, such as its parts.",
            )
        elif not _is_known_type(tensor):
            what = f"is a {type(tensor).__name__}, whose methods a program would not call"
            instead = "Pass it with .as_subclass(torch.Tensor), or make it a wrapper subclass (__tensor_flatten__)."
        elif not all(isinstance(size, int) for size in (*tensor.size(), *tensor.stride())):
            what, instead = f"has the shape {tuple(tensor.size())}", "Pass a tensor of plain sizes."
        elif self._recorder.sizes is not None and (tensor.device.type != "cpu" or isinstance(tensor, FakeTensor)):
            what, instead = "is not on the CPU", "Symbolic sizes need CPU tensors: pass dynamic=False."
        else:
            self._recorder.device.stand_for(tensor.device)
            return
        line = definition or where(self._recorder.module)
        raise CaptureError(f"{it} {what}.\n{line}\n{instead}")

    def _lift_alone(self, real: torch.Tensor, *, is_argument: bool) -> Lifted:
        if gets_no_gradient(real):
            self._lift_group([real], is_argument=is_argument)
            return self._by_id[id(real)]
        sizes = self._recorder.sizes
        if sizes is not None:
            return self._add(real, sizes.ghost(real, self.names.get(id(real), "")), is_argument=is_argument)
        storage = ghost_storage(_end(real), real.device)
        return self._add(real, ghost_over(storage, real), is_argument=is_argument)

    def _lift_group(self, group: list[torch.Tensor], *, is_argument: bool) -> None:
        bases = list({id(b): b for b in map(base_of, group)}.values())
        storage = ghost_storage(max(_end(t) for t in (*group, *bases)), group[0].device)
        members = {id(t) for t in group}
        for base in bases:
            lifted = self._add_over(storage, base, is_argument=is_argument and id(base) in members)
            lifted.is_hidden = id(base) not in members
        for real in group:
            if id(real) not in self._by_id:
                self._add_view(real, self._by_id[id(base_of(real))], is_argument=is_argument)

    def _lift_into(self, other: Lifted, real: torch.Tensor) -> Lifted:
        """Lift a tensor that overlaps one lifted before."""
        base = self._by_id.get(id(base_of(real)))
        if base is not None and base.real is not real and base.real is not None:
            return self._add_view(real, base, is_argument=False)
        storage = other.ghost.untyped_storage()
        if storage.nbytes() < _end(real):
            raise CaptureError(
                f"the function uses a tensor {Spec.of(real)} that shares memory with one of its inputs "
                f"({other.spec}) and reaches outside it.\n{where(self._recorder.module)}\nPass both as arguments."
            )
        return self._add_over(storage, real, is_argument=False)

    def _add_over(self, storage: torch.UntypedStorage, real: torch.Tensor, *, is_argument: bool) -> Lifted:
        """Lift a tensor over memory that is there already, with the version counter of another that shares its own."""
        counter = next((other for other in self._sharing(real, storage) if _shares_counter(other.real, real)), None)
        if counter is None:
            return self._add(real, ghost_over(storage, real), is_argument=is_argument)
        look = counter.ghost.detach().as_strided(real.size(), real.stride(), real.storage_offset()).detach()
        lifted = self._add(real, look, is_argument=is_argument)
        lifted.counter = counter
        return lifted

    def _sharing(self, real: torch.Tensor, storage: torch.UntypedStorage) -> list[Lifted]:
        """Inputs in the memory of a tensor that are no views of others, with ghosts over a storage."""
        known = [one for one in self._by_storage.get(storage_key(real), ()) if one.real is not real]
        return [one for one in known if one.base is None and storage_key(one.ghost) == storage_key(storage)]

    def _add(self, real: torch.Tensor, ghost: torch.Tensor, *, is_argument: bool) -> Lifted:
        slot = None
        with torch.enable_grad():
            is_leaf = real.is_leaf
            if real.requires_grad and not is_leaf and view_base(real) is not None and not view_base(real).requires_grad:
                # A view of a leaf that is a view itself, of a tensor without gradients: so is the ghost.
                slot = ghost = torch.ops.aten.alias.default(ghost).requires_grad_()
            elif real.requires_grad and not is_leaf and view_base(real) is not None and view_base(real).is_leaf:
                slot = ghost.requires_grad_()  # a view of a leaf, which nobody may write to: so is the ghost
            elif real.requires_grad and not is_leaf:
                slot = new_ghost(ghost.size(), ghost.stride(), real.dtype, ghost.device).requires_grad_()
                self._recorder.unlisted.append(slot)
                ghost = apply_of(Attached)(slot, [ghost])  # not swapped, as the tensors of other Functions are
            if view_base(real) is not None:
                ghost = torch.ops.aten.alias.default(ghost)  # a view here too, of a base that nobody sees
            if real.requires_grad and is_leaf:
                slot = ghost.requires_grad_()
                if isinstance(real, torch.nn.Parameter):
                    slot = ghost = torch.nn.Parameter(ghost.detach())
            node = slot.view_as(slot).grad_fn if slot is not None else None  # none where autograd is off altogether
            edge = get_gradient_edge(slot) if slot is not None and node is not None else None
        alias = self._recorder.register(ghost, kind="input")
        if view_base(ghost) is not None:
            self._recorder.take_for(view_base(ghost), alias)
        return self._keep(real, ghost, alias, slot, None, edge, is_argument)

    def _add_view(self, real: torch.Tensor, base: Lifted, *, is_argument: bool) -> Lifted:
        is_part = real.dtype != base.spec.dtype  # of a complex tensor
        if is_part and (real.dtype != base.spec.dtype.to_real() or base.ghost.is_conj()):
            raise CaptureError(
                f"two inputs share memory as {Spec.of(real)} and as {base.spec}, of another dtype.\n"
                f"{where(self._recorder.module)}\nPass one of them."
            )
        with torch.set_grad_enabled(real.grad_fn is not None or not base.ghost.requires_grad):
            seen = torch.view_as_real(base.ghost) if is_part else base.ghost
            if leads_nowhere(real):
                with torch.no_grad():
                    seen = seen.view_as(seen)
            if (real.size(), real.stride()) == (seen.size(), seen.stride()):
                ghost = seen.view_as(seen)
            else:
                ghost = seen.as_strided(real.size(), real.stride(), real.storage_offset())
            if ghost.grad_fn is not None:
                ghost.grad_fn.register_hook(_never_written)
        alias = self._recorder.register(ghost, kind="input")
        edge = get_gradient_edge(ghost) if ghost.requires_grad and ghost.grad_fn is not None else None
        return self._keep(real, ghost, alias, None, base, edge, is_argument)

    def _check_memory(self, lifted: Lifted, real: torch.Tensor) -> None:
        """What overlaps must lie in one memory of ghosts: a write to one of them is a write to the others."""
        known = self._by_storage.get(storage_key(real), ()) if self._recorder.sizes is None else ()
        for other in [one for one in known if one.alias.storage is not lifted.alias.storage]:
            if other.real is not None and overlap(other.real, real):
                raise CaptureError(
                    f"the function uses a tensor {lifted.spec} that shares memory with inputs which lie apart.\n"
                    f"{where(self._recorder.module)}\nPass it as an argument, too."
                )

    def _keep(
        self,
        real: torch.Tensor,
        ghost: torch.Tensor,
        alias: Alias,
        slot: torch.Tensor | None,
        base: Lifted | None,
        edge: GradientEdge | None,
        is_argument: bool,
    ) -> Lifted:
        lifted = Lifted(
            held=self._objects.now.hold(real),
            ghost=ghost,
            alias=alias,
            slot=slot,
            base=base,
            edge=edge,
            entry_node=_history(ghost, base),
            version=version_of(ghost),
            is_argument=is_argument,
            spec=replace(Spec.of(real), shape=alias.size, stride=alias.stride),
            is_leaf=real.is_leaf,
            is_view=view_base(real) is not None,
            offset=int(real.storage_offset()),
            num_bytes=real.untyped_storage().nbytes(),
            _reference=weakref.ref(real),
        )
        self._check_memory(lifted, real)
        self._recorder.memory[alias.storage].num_bytes = lifted.num_bytes
        vars(ghost).update(attributes_of(real))
        self._by_id[id(real)] = lifted
        self._by_storage.setdefault(storage_key(real), []).append(lifted)
        self._by_ghost[id(ghost)] = lifted
        self.all.append(lifted)
        if self._recorder.phase:
            self.late.add(lifted)
        self.on_lift(lifted)
        return lifted


def _nothing() -> None:
    return None


def _shares_counter(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and one.dtype == other.dtype and shares_version(one, other)


def _history(ghost: torch.Tensor, base: Lifted | None) -> Any:
    """The grad_fn of a ghost, or of the base that nobody sees: a view's own is made anew after any write."""
    return (ghost if base is not None or view_base(ghost) is None else view_base(ghost)).grad_fn


def _never_written(gradients: Any, _: Any) -> Any:
    """What arrives at a base, as from a slice: a tensor of its own, no part of another and no view of what came."""
    return tuple(None if g is None else g.clone(memory_format=torch.contiguous_format) for g in gradients)


def _is_known_type(tensor: torch.Tensor) -> bool:
    """Whether Python does with its ghost what it does with a tensor."""
    return type(tensor) is torch.Tensor or isinstance(tensor, (torch.nn.Parameter, FakeTensor))


def _end(tensor: torch.Tensor) -> int:
    """How much of its memory a tensor needs; without elements none, wherever it begins."""
    if not tensor.numel():
        return 0
    return int(tensor.storage_offset()) * tensor.dtype.itemsize + Spec.of(tensor).num_bytes
