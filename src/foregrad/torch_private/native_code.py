"""What torch does in C++ where Python cannot look: hooks of the engine, objects that work on tensors without ops."""

from __future__ import annotations

import os
import sys
from types import FunctionType
from typing import Any

import torch
from torch._C import DispatchKey, TensorBase
from torch._C._dynamo import eval_frame
from torch.autograd.graph import get_gradient_edge

from foregrad.process.package import FOLDER
from foregrad.torch_private.autograd_graph import parts

__all__ = [
    "DYNAMO_FRAMES",
    "NO_TORCH_FUNCTION",
    "dynamo_frames",
    "has_hidden_hooks",
    "hide_from_dynamo",
    "is_native_object",
    "need_compiled_frames",
    "need_no_compiled_frames",
    "replaced_methods",
    "tensor_of_class",
]


_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def hide_from_dynamo(function: Any) -> Any:
    """The function, into which torch.compile does not look, nor into what it calls; compiled autograd calls it so."""
    function._torchdynamo_disable = True
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function


#: What torch.compile asks for what it does with the frames of a function.
DYNAMO_FRAMES = "torch._dynamo.eval_frame._callback_from_stance"


def dynamo_frames() -> tuple[Any, str] | None:
    """The module and the name of that, if anybody uses torch.compile in this process."""
    home, _, name = DYNAMO_FRAMES.rpartition(".")
    module = sys.modules.get(home)
    return None if module is None else (module, name)


#: Where `torch.compile(..., fullgraph=True)` counts the frames that it has compiled, one count for all threads.
COMPILED_FRAMES = "torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count"


def need_no_compiled_frames() -> bool:
    """From now on torch does not mind that nothing is compiled, as inside another such function; whether it did."""
    return bool(eval_frame.set_fullgraph_compiled_frame_count(0) < 0)


def need_compiled_frames() -> None:
    """From now on it does again."""
    eval_frame.set_fullgraph_compiled_frame_count(-1)


def has_hidden_hooks(tensor: torch.Tensor) -> bool:
    """Whether the engine calls someone after it adds to the .grad of a leaf whom the leaf itself does not know: a hook
    on the node that accumulates, of C++ (the Reducer of DistributedDataParallel) or of Python.

    Torch has no way to ask. A node that has hooks is kept alive by somebody beside the leaf; and one that has hooks
    leaves a reference to the gradient to them, so that it takes over a gradient that we still hold, where others copy.
    """
    if not tensor.requires_grad or not tensor.is_leaf:
        return False
    first: Any = get_gradient_edge(tensor).node
    first.metadata["foregrad"] = True
    del first
    node: Any = get_gradient_edge(tensor).node  # a new one, if nobody held the first
    if not node.metadata.pop("foregrad", False):
        return False
    grad, tensor.grad = tensor.grad, None
    late = tensor._post_accumulate_grad_hooks or {}  # known to the leaf, and not to be called here
    known = dict(late)
    late.clear()
    try:
        arriving = torch.empty_like(tensor, requires_grad=False)
        with torch.no_grad():
            node(arriving)
        return tensor.grad is not None and _memory(tensor.grad) == _memory(arriving)
    finally:
        tensor.grad = grad
        late.update(known)


def _memory(tensor: torch.Tensor) -> list[int]:
    return [part.data_ptr() for part in parts(tensor)]


#: Objects of C++ whose work consists of ops, or which are plain values.
_SEEN_AS_OPS = ("ProcessGroup", "Backend", "Store")
_NATIVE = type(DispatchKey)


def is_native_object(value: Any) -> bool:
    """Whether a value is an object of torch's C++ that can work on tensors without ops."""
    kind = type(value)
    if type(kind) is not _NATIVE or not kind.__module__.startswith("torch") or hasattr(kind, "__members__"):
        return False
    return not any(base.__name__ in _SEEN_AS_OPS for base in kind.__mro__)


_TORCH = os.path.dirname(torch.__file__)


def _in_python(*homes: str) -> dict[str, FunctionType]:
    """The methods of tensors that are written in Python, in files of these folders."""
    found = {name: one for name, one in vars(torch.Tensor).items() if isinstance(one, FunctionType)}
    return {name: one for name, one in found.items() if one.__code__.co_filename.startswith(homes)}


#: As torch has them.
_METHODS = _in_python(_TORCH)


def replaced_methods() -> dict[str, tuple[Any, Any]]:
    """Methods of tensors in whose place a user has put a function: that, and the method. Where a mode is told of a call
    of such a method, torch names it by what its name stands for."""
    replaced = _in_python("").items() - _in_python(_TORCH, FOLDER).items()
    return {
        name: (one, _METHODS.get(name, getattr(TensorBase, name)))
        for name, one in replaced
        if hasattr(TensorBase, name)
    }


#: The `__torch_function__` of a class of tensors that torch's functions are to treat as any other.
NO_TORCH_FUNCTION: Any = torch._C._disabled_torch_function_impl


def tensor_of_class(
    kind: type, size: tuple[int, ...], dtype: torch.dtype, device: torch.device, layout: torch.layout
) -> Any:
    """A tensor of a class whose `__torch_dispatch__` carries out all ops on it."""
    return torch.Tensor._make_wrapper_subclass(kind, size, dtype=dtype, device=device, layout=layout)
