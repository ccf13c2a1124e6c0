"""Autograd: version counters, hooks on gradients, what nodes have saved, checkpoints."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils.checkpoint
from torch._C import _current_autograd_node as current_autograd_node
from torch._C._autograd import _unsafe_set_version_counter as _set_version_counters
from torch.autograd.function import BackwardCFunction

__all__ = [
    "CHECKPOINT_OF_SAVED",
    "BackwardCFunction",
    "SavedByNode",
    "accumulation_hooks",
    "current_autograd_node",
    "enter_again",
    "gradient_hooks",
    "has_hooks",
    "next_sequence_number",
    "no_saved_tensor_hooks",
    "node_class",
    "packed_tensors",
    "saved_by",
    "set_version",
    "set_versions",
    "version_of",
]

next_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor, if it has one: inference tensors have none."""
    if not tensor.is_inference():
        _set_version_counters((tensor,), (version,))


def set_versions(tensors: tuple[torch.Tensor, ...], versions: tuple[int, ...]) -> None:
    """The same for several, all of them made in or out of inference mode."""
    if not tensors[0].is_inference():
        _set_version_counters(tensors, versions)


def gradient_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Hooks that the engine calls with the gradient of a tensor; None if there never were any."""
    return tensor._backward_hooks


def accumulation_hooks(tensor: torch.Tensor) -> dict[int, Callable[..., Any]] | None:
    """Hooks that the engine calls after it has added to the .grad of a leaf; None if there never were any."""
    return tensor._post_accumulate_grad_hooks


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether the engine calls someone before or after it adds to the .grad of a leaf."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def packed_tensors(ctx: Any) -> Any:
    """What a custom Function has saved, still packed: each is unpacked when it is asked for."""
    return ctx._raw_saved_tensors


def node_class(function: type[torch.autograd.Function]) -> type:
    """The class of the nodes that a custom Function leaves in the autograd graph."""
    return function._backward_cls


@dataclass(frozen=True)
class SavedByNode:
    """A tensor that a node of the autograd graph has saved."""

    node: Any
    name: str
    tensor: torch.Tensor | None  # None where a hook has packed it away

    def unpack(self) -> Any:
        """As the node does when it runs: autograd refuses if it was written since, and a hook does what it likes."""
        return getattr(self.node, self.name)


def saved_by(node: Any) -> list[SavedByNode]:
    """The tensors that a node has saved."""
    found = []
    for name in _names_of_saved(node.__class__):
        try:
            raw = getattr(node, f"_raw{name}")
        except RuntimeError:  # a backward has freed it; torch says so when the node runs again
            continue
        for one in raw if isinstance(raw, (list, tuple)) else [raw]:
            if one is None or (one.unpack_hook is None and one.data is None):
                continue
            tensor = one.data if one.unpack_hook is None else None
            found.append(SavedByNode(node, name.removeprefix("_") if name == "_saved_tensors" else name, tensor))
    return found


def _names_of_saved(kind: type) -> tuple[str, ...]:
    """What nodes of a class save; a custom Function, and what it closes over, is not kept alive by that."""
    found = _saved_names.get(kind)
    if found is None:
        names = (name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))
        found = _saved_names[kind] = tuple(names)
    return found


_saved_names: weakref.WeakKeyDictionary[type, tuple[str, ...]] = weakref.WeakKeyDictionary()


@contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """Put aside the saved-tensor hooks that are on around the call."""
    hooks = []
    while (pair := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)


#: Where a selective checkpoint starts to give what it has saved.
CHECKPOINT_OF_SAVED = (torch.utils.checkpoint._CachedTorchDispatchMode, "__enter__")


def enter_again(enter: Callable[[Any], Any], mode: Any) -> Any:
    """Let a selective checkpoint give what it has saved each time that it is recomputed, and not only once."""
    kept = vars(mode).setdefault("kept", {key: dict(entries) for key, entries in mode.storage.items()})
    mode.storage.update({key: dict(entries) for key, entries in kept.items()})
    return enter(mode)
