"""Wrapper results: their parts are results of the program, and each call wraps them again.

A result that is an input is that input, and one that is a view of an input or of another result is made as the
function made it. Of any other the parts get its history, so that the program knows plain tensors and their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.spec import Spec
from foregrad.core.wrapper_autograd import Unwrapped, Whole
from foregrad.core.wrapper_subclass import GradientForm, WrapperRecipe, is_wrapper, named_parts, parts
from foregrad.record.ghosts.sparse import Sparse
from foregrad.record.lift.inputs import Inputs
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.lift.wrapper_views import Call, WrapperViews
from foregrad.record.recorder import Recorder
from foregrad.record.trace import OuterRef, ResultView
from foregrad.torch_private.autograd import no_saved_tensor_hooks, version_of
from foregrad.torch_private.pytree import tree_flatten, tree_map_only
from foregrad.torch_private.tensors import view_base


@dataclass(frozen=True, eq=False, slots=True)
class WrappedResult:
    """A result that wraps parts which the program gives."""

    recipe: WrapperRecipe
    parts: tuple[torch.Tensor, ...]
    paths: tuple[str, ...]
    form: GradientForm | None  # of its gradient, if it has one
    version: int


class WrappedResults:
    """What each call makes of the parts that the program gives, in order."""

    def __init__(self, recorder: Recorder, inputs: Inputs, looks: WrapperViews, definition: str) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._looks = looks
        self._definition = definition
        self._known: dict[int, OuterRef] = {}
        self._roots: list[torch.Tensor] = []  # of the results
        self.made: list[WrappedResult | ResultView] = []
        self.names: dict[int, str] = {}  # of what is made, by place
        self.rewritten: list[tuple[Outer, OuterRef]] = []  # inputs that have another history, and that history

    def expect(self, results: list[torch.Tensor]) -> None:
        """All results that wrap others: which of them are views of each other decides how each is made."""
        self._roots += [self._looks.root(result) for result in {id(r): r for r in results}.values()]

    def take(self, ghost: torch.Tensor, name: str) -> OuterRef:
        """How a call refers to a result."""
        outer = self._inputs.outer_of(ghost)
        if outer is not None:
            return OuterRef("w", outer.index)
        if id(ghost) not in self._known:
            call, root = self._looks.call(ghost), self._looks.root(ghost)
            is_seen = self._inputs.outer_of(root) is not None or sum(root is other for other in self._roots) > 1
            made = self._look(call, name) if call is not None and is_seen else self._made(ghost, name)
            self._known[id(ghost)] = OuterRef("u", len(self.made))
            self.made.append(made)
            self.names[len(self.made) - 1] = name
        return self._known[id(ghost)]

    def take_rewritten(self) -> None:
        """Inputs that the function has written to, so that their history is another one."""
        for outer in self._inputs.outer:
            self._check(outer)
            if outer.was_rebased:
                self.rewritten.append((outer, OuterRef("u", len(self.made))))
                self.made.append(self._made(outer.ghost, "an input that was written"))

    def in_parts(self, gradients: list[Any]) -> tuple[list[Any], tuple[Whole | None, ...]]:
        """Gradients in parts, where they wrap others, and how each is made of its parts."""
        if not any(map(is_wrapper, gradients)):
            return gradients, ()
        found: list[Any] = []
        wholes: list[Whole | None] = []
        for gradient in gradients:
            made = self._made(gradient, "a gradient") if is_wrapper(gradient) else None
            found += [gradient] if made is None else made.parts
            wholes.append(None if made is None else Whole(made.recipe, made.paths, made.form))
        return found, tuple(wholes)

    def take_stores(self, stores: Sequence[Any]) -> list[Any]:
        """What the function leaves in modules and in declared state, with references to what wraps others."""
        for store in stores:
            if any(isinstance(tensor, Sparse) for tensor in store.tensors()):
                raise self._refusal(f"stores a sparse tensor in {store.slot.name}, where no later call could read it")
        self.expect([t for store in stores for t in store.tensors() if is_wrapper(t)])
        return [replace(store, value=self.take_stored(store.value, store.slot.name)) for store in stores]

    def take_stored(self, value: Any, name: str) -> Any:
        """What the function leaves in a module, in declared state or in a .grad, with such references."""
        if type(value) in (list, tuple):
            return type(value)(self.take_stored(v, name) for v in value)
        if type(value) is dict:
            return {key: self.take_stored(v, f"{name}.{key}") for key, v in value.items()}
        if not isinstance(value, torch.Tensor) or not is_wrapper(value) or not self._recorder.knows(value):
            return value
        if value.requires_grad and self._inputs.outer_of(value) is None:
            raise self._refusal(f"stores a {type(value).__name__} with a history in {name}")
        return self.take(value, name)

    def _look(self, call: Call, name: str) -> ResultView:
        of = self.take(call.of, name)
        leaves, _ = tree_flatten((call.args, call.kwargs))
        if any(isinstance(leaf, torch.Tensor) and leaf is not call.of for leaf in leaves):
            raise self._refusal(f"returns a {type(call.of).__name__} that is a view chosen by other tensors")
        args, kwargs = tree_map_only(torch.Tensor, lambda _: of, (call.args, call.kwargs))
        return ResultView(call.func, args, kwargs, call.item, call.grad_enabled)

    def _made(self, ghost: torch.Tensor, name: str) -> WrappedResult:
        """The parts of a tensor as results of their own, with its history if it has one."""
        if isinstance(ghost, Sparse):
            ghost.check_result()
        recipe, paths = WrapperRecipe.of(ghost), tuple(path for path, _ in named_parts(ghost))
        if not ghost.requires_grad:
            known = [part if self._recorder.knows(part) else self._inputs.lift(part) for part in parts(ghost)]
            return WrappedResult(recipe, tuple(known), paths, None, version_of(ghost))
        if ghost.is_leaf:
            raise self._refusal(f"returns a {type(ghost).__name__} that it told to require a gradient")
        with no_saved_tensor_hooks(), self._recorder, torch.enable_grad():
            form = self._form(ghost, recipe, name)
            found = Unwrapped.apply(ghost, form)  # type: ignore[no-untyped-call]
        if [(tuple(p.shape), p.dtype) for p in found] != [(spec.shape, spec.dtype) for spec in form.specs]:
            raise self._refusal(f"returns a {recipe}, whose gradient is a {form.recipe} with other parts")
        if not any(part.requires_grad for part in found):
            raise self._refusal(f"returns a {recipe} that needs a gradient, none of whose parts can have one")
        return WrappedResult(recipe, found, paths, form, version_of(ghost))

    def _form(self, ghost: torch.Tensor, recipe: WrapperRecipe, name: str) -> GradientForm:
        """What the gradient of a result is expected to look like: like the result, contiguous, and as that wishes."""
        start = len(self._recorder.ops)
        like = recipe.wrap(parts(ghost)).contiguous()
        wish = getattr(like, "__coerce_tangent_metadata__", None)
        like = like if wish is None else wish()
        if not is_wrapper(like):
            raise self._refusal(f"returns a {recipe}, whose gradient is a {type(like).__name__}")
        form = GradientForm(name, WrapperRecipe.of(like), tuple(Spec.of(part) for part in parts(like)))
        self._recorder.forget(start)
        return form

    def _check(self, outer: Outer) -> None:
        """Refuse what a call would not do to an input that wraps others."""
        if outer.ghost.requires_grad != outer.required_grad and not outer.was_rebased:
            raise self._refusal(f"changes whether an input, a {outer.recipe}, requires a gradient")
        added = [key for key in vars(outer.ghost) if key not in outer.attributes and not key.startswith("_")]
        if added:
            raise self._refusal(f"sets the attribute {added[0]!r} on an input, a {outer.recipe}")
        if outer.was_changed:
            raise self._refusal(f"changes a member or an attribute of an input, a {outer.recipe}")
        if outer.bumps and any(view_base(ghost) is outer.ghost for ghost in self._recorder.objects):
            raise self._refusal(f"writes to an input, a {outer.recipe}, of which a plain tensor is a view")
        written = {s for s in (part.alias.storage for part in outer.parts) if self._recorder.memory[s].num_writes}
        others = [o for o in self._inputs.outer if o is not outer]
        if written & {part.alias.storage for other in others for part in other.parts}:
            raise self._refusal(f"writes to an input, a {outer.recipe}, that shares memory with another")

    def _refusal(self, what: str) -> CaptureError:
        return CaptureError(f"the function {what}.\n{self._definition}\nDo this part outside.")
