"""The private names of torch that the tools for the autograd graph use."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import GetSetDescriptorType, MethodDescriptorType
from typing import Any, ClassVar

import torch
from torch._C import _current_graph_task_id as graph_task_id

from foregrad.torch_private.autograd import BackwardCFunction
from foregrad.torch_private.sparse import SPARSE_PATHS, sparse_parts
from foregrad.torch_private.tensors import is_traceable_wrapper_subclass
from foregrad.torch_private.transforms import is_functorch_wrapped_tensor

__all__ = [
    "WeakStorage",
    "backward_reaches",
    "graph_task_id",
    "is_node_type",
    "keep_until_backward_ends",
    "leaf_of",
    "parts",
    "saved_values",
    "sequence_number",
    "storage_id",
]

#: The sequence number of a node that adds to the .grad of a leaf.
_ACCUMULATES = 2**64 - 1


def is_node_type(kind: type) -> bool:
    """Whether instances are nodes of the autograd graph, of C++ (with a Python name or without) or of Python."""
    if issubclass(kind, BackwardCFunction):
        return True
    edges, number = vars(kind).get("next_functions"), vars(kind).get("_sequence_nr")
    return isinstance(edges, GetSetDescriptorType) and isinstance(number, MethodDescriptorType)


def sequence_number(node: Any) -> int | None:
    """How many nodes this thread had made when it made this one; None for the accumulator of a leaf."""
    number = node._sequence_nr()
    return None if number == _ACCUMULATES else number


def saved_values(node: Any) -> Iterator[tuple[str, Any, Any]]:
    """What a node has saved: name, the tensor or what a hook made of it, and the hook that unpacks it or None."""
    for name in _names_of_saved(node.__class__):
        raw = _raw_saved(node, name)
        many = isinstance(raw, (list, tuple))
        short = name.removeprefix("_raw_saved_")
        for place, one in enumerate(raw if many else [raw]):
            if one is not None and one.data is not None:
                yield (f"{short}[{place}]" if many else short), one.data, one.unpack_hook
    if isinstance(node, BackwardCFunction):
        for name, value in vars(node).items():
            if isinstance(value, torch.Tensor):
                yield f"ctx.{name}", value, None


def _raw_saved(node: Any, name: str) -> Any:
    try:
        return getattr(node, name)
    except RuntimeError as error:
        if "a second time" not in str(error):
            raise
        return None  # a backward has freed them; nodes with a list of tensors raise where others have nothing


@cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def backward_reaches(node: Any) -> bool:
    """Whether the backward that is running will compute the gradient that enters a node."""
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError as error:
        if "A leaf node was passed" not in str(error):
            raise
        return True  # torch.autograd.grad() is asked for the gradient of this leaf; torch 2.13 does not say so


def keep_until_backward_ends(value: object) -> None:
    """Let the backward that is running own an object: it goes when that ends, by an error too."""
    torch.autograd.Variable._execution_engine.queue_callback(_Owner(value))


class _Owner:
    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self) -> None:
        """Called at the end of a backward that raised nothing."""


def parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors with memory that a tensor consists of: itself, or those of a sparse one or of a wrapper.

    Empty for tensors whose memory cannot be seen.
    """
    if is_functorch_wrapped_tensor(tensor):
        return []
    if is_traceable_wrapper_subclass(tensor):
        members = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return [part for member in members if isinstance(member, torch.Tensor) for part in parts(member)]
    if tensor.layout in SPARSE_PATHS:
        return [part for one in sparse_parts(tensor) for part in parts(one)]
    return [tensor] if tensor.layout is torch.strided else []


def storage_id(tensor: torch.Tensor) -> int:
    """What tells storages apart, as long as each is alive."""
    return tensor.untyped_storage()._cdata


def leaf_of(node: Any) -> torch.Tensor | None:
    """The leaf whose .grad a node adds to, or None."""
    return getattr(node, "variable", None)


class WeakStorage:
    """A storage that may go away: `weak()` is the storage or None.

    Its id is given to no other storage as long as this object lives.
    """

    __slots__ = ("_reference",)
    _free: ClassVar[Any] = torch.UntypedStorage._free_weak_ref  # still there when the interpreter shuts down

    def __init__(self, tensor: torch.Tensor) -> None:
        self._reference = tensor.untyped_storage()._weak_ref()

    def __call__(self) -> torch.UntypedStorage | None:
        storage = torch.UntypedStorage._new_with_weak_ptr(self._reference)
        return storage if isinstance(storage, torch.UntypedStorage) else None

    def __del__(self) -> None:
        self._free(self._reference)
