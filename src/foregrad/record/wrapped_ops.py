"""Ops on tensors that wrap others: each is theirs to carry out, with ops on their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from foregrad.errors import CaptureError
from foregrad.record.ghosts import kind_of
from foregrad.record.origins import where
from foregrad.substrate import OpOverload, no_function_modes, tree_leaves, tree_map_only
from foregrad.words.wrapped import is_wrapper

if TYPE_CHECKING:
    from foregrad.record.recorder import Recorder


def op_on_wrapper(recorder: Recorder, func: Any, args: Any, kwargs: Any) -> Any:
    """Leave an op to the tensors that wrap others among its arguments; real ones are swapped for ghosts before."""
    if isinstance(func, OpOverload) and kind_of(func).changes_metadata:
        raise CaptureError(
            f"the function changes the geometry of a tensor that wraps others ({func}).\n{where(recorder.module)}\n"
            "Make a view or a copy instead."
        )
    with no_function_modes():
        wrappers = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and is_wrapper(leaf)]
        ghosts = {id(tensor): recorder.lift(tensor) for tensor in wrappers if not recorder.knows(tensor)}
    if not ghosts:
        return NotImplemented
    args, kwargs = tree_map_only(torch.Tensor, lambda tensor: ghosts.get(id(tensor), tensor), (args, kwargs))
    with recorder:
        return func(*args, **kwargs)
