"""History: what autograd tells of a tensor; of some it refuses to tell. And what Python has attached to it."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from foregrad.process.no_warnings import no_warnings
from foregrad.torch_private.autograd import has_hooks, set_version, version_of
from foregrad.torch_private.tensors import view_base


def history_of(ghost: torch.Tensor) -> Any:
    """The grad_fn; None where autograd refuses to tell, as for a view of several whose base was written."""
    try:
        return ghost.grad_fn
    except RuntimeError:
        return None


def is_leaf(ghost: torch.Tensor) -> bool:
    """Whether a tensor has no history; no where autograd refuses to tell: a view of several, or one made under no_grad,
    whose base was written."""
    try:
        return ghost.is_leaf
    except RuntimeError:
        return False


def grad_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """The .grad of any tensor, without the warning that torch has for one that is no leaf."""
    if not tensor.requires_grad or is_leaf(tensor):
        return tensor.grad
    with no_warnings():
        return tensor.grad


def is_flagged(ghost: torch.Tensor) -> bool:
    """Whether a tensor was told to require a gradient, rather than made from one that does."""
    base = view_base(ghost)
    return ghost.requires_grad and is_leaf(ghost) and not (base is not None and base.requires_grad)


def gets_no_gradient(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view made under `no_grad`: it requires a gradient, as its base does, but gets none."""
    base = view_base(tensor)
    if base is None or not (tensor.requires_grad and is_leaf(tensor) and base.requires_grad):
        return False
    with torch.enable_grad():
        node = tensor.view_as(tensor).grad_fn
    return node is not None and all(following is None for following, _ in node.next_functions)


def gets_gradient(tensor: torch.Tensor) -> bool:
    """Whether there is a place in the autograd graph for the gradient of a tensor."""
    return tensor.requires_grad and not gets_no_gradient(tensor)


def hidden_bases(group: list[torch.Tensor]) -> list[torch.Tensor]:
    """The bases to lift along with a group of arguments: those of overlapping ones, and of views made under no_grad."""
    return list(map(base_of, group)) if len(group) > 1 or any(map(gets_no_gradient, group)) else []


def base_of(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that autograd takes this one for a view of, if the two have one history."""
    base = view_base(tensor)
    if base is None or (tensor.requires_grad and not base.requires_grad):
        return tensor
    has_its_own = tensor.requires_grad and tensor.is_leaf and not gets_no_gradient(tensor)
    return tensor if has_its_own else base


def leads_nowhere(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view of one made under `no_grad`: its history does not reach its base."""
    node, base = tensor.grad_fn, view_base(tensor)
    end = None if base is None else base.grad_fn
    if node is None or not (base is not None and base.requires_grad):
        return False
    while node is not None and node is not end and node.next_functions:
        node = node.next_functions[0][0]
    return node is None


def keeps_gradient(tensor: torch.Tensor) -> bool:
    """Whether somebody sees the gradient that passes a tensor: a hook, or its .grad."""
    return has_hooks(tensor) or tensor.retains_grad


def leads_to(tensor: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether a gradient that arrives at a tensor goes on to one of the others."""
    if not gets_gradient(tensor):
        return False
    edges = [get_gradient_edge(other) for other in others if gets_gradient(other)]  # alive while they are compared
    ends = {(edge.node, edge.output_nr) for edge in edges}
    first = get_gradient_edge(tensor)
    waiting: list[tuple[Any, int]] = [(first.node, first.output_nr)]
    seen: set[Any] = set()
    while waiting:
        edge = waiting.pop()
        if edge in ends:
            return True
        if edge[0] is not None and edge[0] not in seen:
            seen.add(edge[0])
            waiting += edge[0].next_functions
    return False


def adds_to_grad_of(tensor: torch.Tensor, *others: torch.Tensor) -> bool:
    """Whether a backward from a tensor adds to the .grad of one of the others."""
    return leads_to(tensor, *(other for other in others if other.is_leaf or other.retains_grad))


def shares_version(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors have one version counter: a tensor and its `detach()` do, a tensor and its `.data` do not."""
    if one.is_inference() or other.is_inference() or version_of(one) != version_of(other):
        return False
    before = version_of(one)
    set_version(one, before + 1)
    is_shared = version_of(other) != before
    set_version(one, before)
    return is_shared


def attributes_of(tensor: torch.Tensor) -> dict[str, Any]:
    """Attributes that a plain tensor was given in Python."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    return {key: value for key, value in vars(tensor).items() if key[:1] != "_"} if is_plain else {}
