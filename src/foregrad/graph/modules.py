"""Which module a node of the autograd graph comes from."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from foregrad.graph.order import following_of, in_order
from foregrad.torch_private.autograd import next_sequence_number
from foregrad.torch_private.autograd_graph import leaf_of, sequence_number
from foregrad.torch_private.pytree import tree_leaves

_KEY = "foregrad.module"
_NAME = "foregrad.parameter"


@contextmanager
def track_modules(model: nn.Module) -> Iterator[None]:
    """Inside, nodes remember the path of the module of `model` that made them; `""` is the model itself.

    The accumulators of parameters remember their names. `find(module=...)`, `memory`, `render` and `diff` use it.
    """
    handles: list[Any] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    running = threading.local()  # the calls of this thread: path, and the sequence number at which each began

    def enter(path: str, module: nn.Module, args: Any) -> None:
        running.calls = [*getattr(running, "calls", ()), (path, next_sequence_number())]

    def leave(path: str, module: nn.Module, args: Any, result: Any) -> None:
        calls = getattr(running, "calls", [])
        while path in [other for other, _ in calls]:  # else the call raised before it was entered
            last, first = calls.pop()
            if last == path:
                _label([t for t in tree_leaves(result) if isinstance(t, torch.Tensor)], first, path, names)
                return

    try:
        for path, module in model.named_modules():
            handles.append(module.register_forward_pre_hook(partial(enter, path)))
            handles.append(module.register_forward_hook(partial(leave, path), always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def module_of(node: Any) -> str:
    """The path of the module that a node comes from, as far as known: of a node of the graph, or of a program."""
    if isinstance(node, torch.fx.Node):
        origin = node.meta.get("origin")
        return origin.module if origin is not None else ""
    return str(node.metadata.get(_KEY, ""))


def parameter_of(node: Any) -> str:
    """The name of the parameter whose .grad a node adds to, as far as known."""
    return str(node.metadata.get(_NAME, ""))


def _label(outputs: list[torch.Tensor], first: int, path: str, names: dict[int, str]) -> None:
    """Tell the nodes behind some tensors that were made since the first number where they come from."""

    def is_new(node: Any) -> bool:
        number = sequence_number(node)
        return number is not None and number >= first

    for node in in_order([tensor.grad_fn for tensor in outputs if tensor.grad_fn is not None], is_new):
        node.metadata.setdefault(_KEY, path)
        for following in following_of(node):
            name = names.get(id(leaf_of(following)))
            if name is not None:
                following.metadata[_NAME] = name
