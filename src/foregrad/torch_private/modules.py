"""Modules: the tables in which an `nn.Module` keeps what belongs to it, and where it is called."""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "HOOKS",
    "MODULE_CALL",
    "NAMED_HOOKS",
    "TABLES",
    "TENSOR_TABLES",
    "UNSAVED_BUFFERS",
    "children_of",
    "forward_hook_numbers",
    "missing_tensors",
]

#: Tables of tensors.
TENSOR_TABLES = ("_parameters", "_buffers")

#: All tables in which attributes are looked up that are not in `__dict__`.
TABLES = (*TENSOR_TABLES, "_modules")

#: The names of buffers that are not in the state dict.
UNSAVED_BUFFERS = "_non_persistent_buffers_set"

#: What a module runs beside its forward.
HOOKS = ("_backward_pre_hooks", "_backward_hooks", "_forward_hooks", "_forward_pre_hooks")

#: Which of the hooks are called in a special way, by their numbers.
NAMED_HOOKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")

#: Where a module is called, hooks included.
MODULE_CALL = (torch.nn.Module, "_call_impl")


def children_of(module: torch.nn.Module) -> dict[str, Any]:
    """The children of a module by name, also those that are None; what is put there is a child."""
    return module._modules


def missing_tensors(module: torch.nn.Module) -> list[str]:
    """Parameters and buffers that are registered, and None."""
    return [key for table in TENSOR_TABLES for key, tensor in getattr(module, table).items() if tensor is None]


def forward_hook_numbers(module: torch.nn.Module) -> list[int]:
    """The numbers of its forward hooks and then of its forward pre-hooks, in the order in which they run."""
    return [*module._forward_hooks, *module._forward_pre_hooks]
