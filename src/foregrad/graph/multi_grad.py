"""A hook on the gradients of several tensors: when all of them are there, or the first."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch.autograd.graph import get_gradient_edge
from torch.utils.hooks import RemovableHandle

from foregrad.graph.policy import spec_of
from foregrad.process.forks import lock
from foregrad.torch_private.autograd_graph import backward_reaches, graph_task_id, keep_until_backward_ends


def register_multi_grad_hook(
    tensors: Sequence[torch.Tensor],
    fn: Callable[[Sequence[torch.Tensor | None]], None] | Callable[[torch.Tensor], None],
    *,
    mode: Literal["all", "any"] = "all",
) -> RemovableHandle:
    """Call `fn` once in each backward that reaches some of the tensors; `.remove()` of what is returned ends this.

    With `"all"` it is called with a list of their gradients, as soon as the last one is computed that this backward
    computes, None for the others. With `"any"` it is called with the first gradient.
    """
    if mode not in ("all", "any"):
        raise ValueError(f"mode is 'all' or 'any', given {mode!r}")
    without = [(place, one) for place, one in enumerate(tensors) if not one.requires_grad]
    if without and (mode == "all" or len(without) == len(tensors)):
        listed = "\n".join(f"  tensors[{place}]  {spec_of(one)}" for place, one in without)
        raise RuntimeError(
            f"a hook for {mode} of the gradients needs tensors that require grad; these do not:\n{listed}\n"
            "Leave them out, or call requires_grad_() on them first."
        )
    watch = _Watch(fn, mode)
    watched = [one for one in tensors if one.requires_grad]
    return _Handles([tensor.register_hook(watch.slot(tensor)) for tensor in watched])


class _Watch:
    """What the hooks of the single tensors share. It owns none of them, and no gradient."""

    def __init__(self, fn: Callable[[Any], None], mode: str) -> None:
        self._fn, self._is_all = fn, mode == "all"
        self._lock = lock()
        self._slots: list[weakref.ref[_Slot]] = []
        self._states: weakref.WeakValueDictionary[int, _State] = weakref.WeakValueDictionary()

    def slot(self, tensor: torch.Tensor) -> _Slot:
        slot = _Slot(self, len(self._slots), tensor)
        self._slots.append(weakref.ref(slot))
        return slot

    def arrive(self, place: int, gradient: torch.Tensor | None) -> None:
        """The gradient of one of the tensors is there; None if its node runs without one, for another output."""
        if gradient is None and not self._is_all:
            return
        state = self._state()
        with state.lock:
            if state.is_done:
                return
            state.gradients[place] = gradient
            state.num_waiting -= 1
            state.is_done = state.num_waiting == 0
            if not state.is_done:
                return
            gradients, state.gradients = state.gradients, []
        self._fn(gradients if self._is_all else gradient)

    def _state(self) -> _State:
        """Of the backward that is running, which alone owns it."""
        task = graph_task_id()
        with self._lock:
            state = self._states.get(task)
            if state is None:
                state = self._states[task] = _State(len(self._slots), self._num_reached() if self._is_all else 1)
                keep_until_backward_ends(state)
        return state

    def _num_reached(self) -> int:
        nodes = [slot.node for ref in self._slots if (slot := ref()) is not None]
        return sum(backward_reaches(node) for node in nodes if node is not None)


class _State:
    """What has arrived in one backward."""

    def __init__(self, num_tensors: int, num_waiting: int) -> None:
        self.lock = lock()
        self.gradients: list[torch.Tensor | None] = [None] * num_tensors
        self.num_waiting = num_waiting
        self.is_done = False


class _Slot:
    """The hook on one tensor.

    It owns no other tensor's node, and no leaf: a chain of nodes that own each other's hooks would never be freed.
    """

    def __init__(self, watch: _Watch, place: int, tensor: torch.Tensor) -> None:
        self._watch, self._place = watch, place
        node = tensor.grad_fn
        self._node = (lambda: node) if node is not None else _accumulator(weakref.ref(tensor))

    @property
    def node(self) -> Any:
        return self._node()

    def __call__(self, gradient: torch.Tensor | None) -> None:
        self._watch.arrive(self._place, gradient)


def _accumulator(leaf: weakref.ref[torch.Tensor]) -> Callable[[], Any]:
    def node() -> Any:
        tensor = leaf()
        return get_gradient_edge(tensor).node if tensor is not None else None

    return node


class _Handles(RemovableHandle):
    """The handles of some hooks as one."""

    def __init__(self, handles: Sequence[RemovableHandle]) -> None:
        self.handles = tuple(handles)

    def remove(self) -> None:
        for handle in self.handles:
            handle.remove()

    def __getstate__(self) -> Any:
        return self.handles

    def __setstate__(self, state: Any) -> None:
        self.handles = state
