"""Wrapper subclasses: flattened to plain tensors, and built again around new ones.

TwoTensor(a, TwoTensor(b, c))  has the parts  a, b, c  at  .a, .b.a, .b.b
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.errors import BackwardError
from foregrad.core.sparse import SparseForm, is_sparse
from foregrad.core.spec import Spec, dtype_text
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.sparse import SPARSE_PATHS, sparse_parts
from foregrad.torch_private.tensors import is_traceable_wrapper_subclass, is_traceable_wrapper_subclass_type

is_wrapper_type = is_traceable_wrapper_subclass_type


def is_wrapper(value: object) -> bool:
    """Whether a value is a tensor that wraps others and can be taken apart."""
    return is_traceable_wrapper_subclass(value)


def has_parts(value: object) -> bool:
    """Whether a value is a tensor that consists of others: one that wraps them, or a sparse one."""
    return is_wrapper(value) or is_sparse(value)


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The dense tensors in a tensor; a dense one is all of itself. Those of a sparse one are new objects each time."""
    return [part for _, part in named_parts(tensor)]


def named_parts(tensor: torch.Tensor, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The same, each with the attributes that lead to it."""
    if not is_wrapper(tensor):
        own = (
            zip(SPARSE_PATHS[tensor.layout], sparse_parts(tensor), strict=True) if is_sparse(tensor) else [("", tensor)]
        )
        yield from ((path + name, part) for name, part in own)
        return
    for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        member = getattr(tensor, name)
        if isinstance(member, torch.Tensor):
            yield from named_parts(member, f"{path}.{name}")


@dataclass(frozen=True)
class Opaque:
    """A member that is no tensor."""

    value: Any


@dataclass(frozen=True)
class WrapperRecipe:
    """How to make a tensor around new parts: its type, what it says of itself, its size, and its members."""

    kind: type
    context: Any
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    members: tuple[tuple[str, WrapperRecipe | Opaque | None], ...]  # None: a plain tensor

    @staticmethod
    def of(tensor: torch.Tensor) -> WrapperRecipe:
        if not is_wrapper(tensor):
            form = SparseForm.of(tensor)
            plain = tuple((name, None) for name in SPARSE_PATHS[tensor.layout])
            return WrapperRecipe(type(tensor), form, form.size, (), form.dtype, plain)
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        members = tuple((name, _member(getattr(tensor, name))) for name in names)
        return WrapperRecipe(type(tensor), context, tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, members)

    def wrap(self, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """A tensor around these parts, that requires no gradient."""
        with no_function_modes():
            if isinstance(self.context, SparseForm):
                return self.context.make(values)
            made = self._wrap(iter(values))
            return made.requires_grad_(False)

    def _wrap(self, values: Iterator[torch.Tensor]) -> torch.Tensor:
        inner: dict[str, Any] = {}
        for name, member in self.members:
            if isinstance(member, WrapperRecipe):
                inner[name] = member._wrap(values)
            else:
                inner[name] = next(values) if member is None else member.value
        unflatten: Any = self.kind.__tensor_unflatten__  # type: ignore[attr-defined]
        made: torch.Tensor = unflatten(inner, self.context, torch.Size(self.size), self.stride)
        return made

    def __str__(self) -> str:
        members = [
            f"{name}: {member.value if isinstance(member, Opaque) else member}"
            for name, member in self.members
            if member is not None
        ]
        said = [] if self.context is None else [str(self.context)]
        inside = ", ".join([*said, *members])
        shape = f"{dtype_text(self.dtype)}[{', '.join(map(str, self.size))}]"
        return f"{self.kind.__name__} {shape}" + (f" ({inside})" if inside else "")


def _member(value: Any) -> WrapperRecipe | Opaque | None:
    if not isinstance(value, torch.Tensor):
        return Opaque(value)
    return WrapperRecipe.of(value) if is_wrapper(value) else None


@dataclass(frozen=True)
class GradientForm:
    """What the gradient of a result looks like: its recipe, and its parts."""

    name: str  # of the result
    recipe: WrapperRecipe
    specs: tuple[Spec, ...]

    def accept(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient that arrives, which is asked to take this form if it has another."""
        if not self._fits(gradient):
            gradient = self._coerced(gradient)
        if not self._fits(gradient):
            raise refused_gradient(gradient, self.name, str(self.recipe))
        return gradient

    def _fits(self, gradient: torch.Tensor) -> bool:
        if not is_wrapper(gradient) or WrapperRecipe.of(gradient) != self.recipe:
            return False
        wanted = [(spec.shape, spec.dtype, spec.device) for spec in self.specs]
        return [(tuple(part.shape), part.dtype, part.device) for part in parts(gradient)] == wanted

    def _coerced(self, gradient: torch.Tensor) -> torch.Tensor:
        is_same_kind = type(gradient) is self.recipe.kind
        if not is_same_kind or WrapperRecipe.of(gradient).context != self.recipe.context:
            gradient = coerced(gradient, self.recipe.context, None if is_same_kind else self.recipe.kind)
        return gradient.contiguous() if is_wrapper(gradient) else gradient


def coerced(gradient: torch.Tensor, context: Any, kind: type | None) -> torch.Tensor:
    """A gradient that was asked to be of another kind, or to say other things of itself; the same if it cannot."""
    coerce = getattr(gradient, "__coerce_same_metadata_as_tangent__", None)
    found = None if coerce is None else (coerce(context) if kind is None else coerce(context, kind))
    return gradient if found is None else found


def refused_gradient(gradient: torch.Tensor, name: str, wanted: str) -> BackwardError:
    found = WrapperRecipe.of(gradient) if is_wrapper(gradient) else f"{type(gradient).__name__} {Spec.of(gradient)}"
    return BackwardError(
        f"the gradient that arrives for {name} is a {found}; the program was captured for a {wanted}.\n"
        "Convert the gradient, or give its type a __coerce_same_metadata_as_tangent__ that does."
    )
