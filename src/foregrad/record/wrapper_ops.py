"""Ops on tensors that wrap others: each is theirs to carry out, with ops on their parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.wrapper_subclass import is_wrapper
from foregrad.record.ghosts.table import kind_of
from foregrad.record.origins import where
from foregrad.torch_private.dispatch import no_function_modes
from foregrad.torch_private.ops import OpOverload
from foregrad.torch_private.pytree import tree_leaves, tree_map_only

Swap = Callable[[torch.Tensor], torch.Tensor]


def waited(func: OpOverload, module: str) -> OpOverload:
    """The op to record: a collective's result is waited for where torch would put off the wait."""
    if func.namespace == "c10d":
        raise CaptureError(
            f"the function communicates with other processes by {func}, which a program cannot hold.\n{where(module)}\n"
            "Use torch.distributed's functional collectives, or do it outside."
        )
    if func.namespace == "_c10d_functional" and func is torch.ops._c10d_functional._wrap_tensor_autograd.default:
        return torch.ops._c10d_functional.wait_tensor.default
    return func


def op_on_wrapper(func: Any, args: Any, kwargs: Any, swap: Swap, module: str) -> Any:
    """Swap real tensors that wrap others for their ghosts, and leave the op to these."""
    if isinstance(func, OpOverload) and kind_of(func).changes_metadata:
        raise CaptureError(
            f"the function changes the geometry of a tensor that wraps others ({func}).\n{where(module)}\n"
            "Make a view or a copy instead."
        )
    with no_function_modes():
        wrappers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and is_wrapper(leaf)]
        ghosts = {id(tensor): swap(tensor) for tensor in wrappers}
        if all(ghosts[id(tensor)] is tensor for tensor in wrappers):
            return NotImplemented
        args, kwargs = tree_map_only(torch.Tensor, lambda tensor: ghosts.get(id(tensor), tensor), (args, kwargs))
        return func(*args, **kwargs)
