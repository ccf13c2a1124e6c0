"""Every private name of torch that foregrad uses, in one place: a new torch release is this file's work.

Checked against torch 2.13.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.utils.checkpoint
from torch import fx
from torch._C import DisableTorchFunction as no_function_modes
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _current_autograd_node as current_autograd_node
from torch._C import _ExcludeDispatchKeyGuard as exclude_keys
from torch._C import _len_torch_function_stack as num_function_modes
from torch._C._autograd import _unsafe_set_version_counter as _set_version_counters
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
from torch._C._dynamo.guards import _empty_strided_cpu as empty_strided_cpu  # type: ignore[attr-defined]
from torch._C._dynamo.guards import _reinterpret_tensor as reinterpret_tensor  # type: ignore[attr-defined]
from torch._C._dynamo.guards import assert_size_stride as check_layout
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._dispatch.python import enable_python_dispatcher as symbolic_kernels
from torch._library.simple_registry import singleton as _registered
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd.function import BackwardCFunction
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._python_dispatch import _disable_current_modes as no_dispatch_modes
from torch.utils._pytree import (
    TreeSpec,
    keystr,
    tree_flatten,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "BASE",
    "BELOW_AUTOGRAD",
    "CHECKPOINT_OF_SAVED",
    "FUNCTION_HOMES",
    "FUSED_OPTIMIZERS",
    "MODULE_CALL",
    "NO_MEMORY",
    "SCALED_STEP",
    "BackwardCFunction",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GlobalStateGuard",
    "HigherOrderOperator",
    "OpOverload",
    "SavedByNode",
    "TensorGuards",
    "TorchDispatchMode",
    "TreeSpec",
    "UnsupportedOperatorException",
    "autocast_disabled",
    "autocast_state",
    "check_layout",
    "composite_of",
    "current_autograd_node",
    "default_device_of",
    "empty_strided_cpu",
    "enter_again",
    "exclude_keys",
    "fake_mode_is_on",
    "give_memory",
    "global_state",
    "global_state_guard",
    "has_hooks",
    "is_functorch_wrapped_tensor",
    "is_marked_effectful",
    "is_traceable_wrapper_subclass",
    "is_traceable_wrapper_subclass_type",
    "is_traced_by_fx",
    "keystr",
    "lazy_graph_module",
    "library_runner",
    "neg_view",
    "next_sequence_number",
    "no_dispatch_modes",
    "no_function_modes",
    "no_saved_tensor_hooks",
    "num_function_modes",
    "ops_are_transformed",
    "quiet_torch",
    "registered_effect",
    "reinterpret_tensor",
    "saved_by",
    "set_version",
    "set_versions",
    "symbolic_kernels",
    "take_memory",
    "tell_it_steps",
    "tensor_without_memory",
    "tree_flatten",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
    "under_foreign_control",
    "version_of",
]

#: Dispatch keys that code of a compiled program skips: it is below autograd, and its views are no autograd views.
BELOW_AUTOGRAD = DispatchKeySet(DispatchKey.ADInplaceOrView) | DispatchKeySet(DispatchKey.AutogradFunctionality)

#: Where torch keeps its Python functions for ops.
FUNCTION_HOMES: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
    torch.Tensor,
)

#: `x._base`, as a function.
BASE: Any = torch.Tensor._base.__get__  # type: ignore[union-attr]

#: Functions that do the whole step of an optimizer, and their ops.
FUSED_OPTIMIZERS: dict[Any, Any] = {
    getattr(torch, name): getattr(torch.ops.aten, name)
    for name in ("_fused_sgd_", "_fused_adam_", "_fused_adamw_", "_fused_adagrad_")
}

neg_view = torch._neg_view

next_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]

_transforms_active = torch._C._are_functorch_transforms_active
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_compiling = torch.compiler.is_compiling
_forward_ad = torch.autograd.forward_ad
_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback


def under_foreign_control() -> bool:
    """Whether someone else is watching or transforming the ops right now: then the original function must run."""
    return bool(
        _is_compiling()
        or _transforms_active()
        or _num_dispatch_modes()
        or num_function_modes()
        or _forward_ad._current_level >= 0
        or torch.is_anomaly_enabled()  # it names the line of each op
        or _frame_callback() is not None  # torch.compile runs a part of its function in Python, and follows its calls
    )


def ops_are_transformed() -> bool:
    """Whether each op is batched or cast on its way to its kernel."""
    level = torch._C._vmapmode_increment_nesting()  # of `is_grads_batched`; the only way to ask
    torch._C._vmapmode_decrement_nesting()
    return bool(level > 1 or _transforms_active() or torch.is_autocast_enabled("cpu"))


def registered_effect(func: OpOverload) -> bool:
    """Whether an op is registered as effectful."""
    entry = _registered.get(func._name)
    return entry is not None and entry.effect.effect is not None


def is_marked_effectful(func: OpOverload) -> bool:
    """Whether FX was told that an op, or all of its overloads, has a side effect."""
    marked = fx.node._side_effectful_functions
    return func in marked or func.overloadpacket in marked


def lazy_graph_module(constants: Mapping[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph module whose Python code is written when it is first run or printed: most are only looked at."""
    return _LazyGraphModule(dict(constants), graph, class_name=name)


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor, if it has one: inference tensors have none."""
    if not tensor.is_inference():
        _set_version_counters((tensor,), (version,))


def set_versions(tensors: tuple[torch.Tensor, ...], versions: tuple[int, ...]) -> None:
    """The same for several, all of them made in or out of inference mode."""
    if not tensors[0].is_inference():
        _set_version_counters(tensors, versions)


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether the engine calls someone before or after it adds to the .grad of a leaf."""
    return bool(tensor._backward_hooks or tensor._post_accumulate_grad_hooks)


def tell_it_steps(optimizer: torch.optim.Optimizer) -> None:
    """Let schedulers know that an optimizer makes its steps, though nobody calls them: they warn if it makes none."""
    if hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        optimizer._opt_called = True  # type: ignore[attr-defined]


@cache
def composite_of(func: OpOverload) -> Callable[..., Any] | None:
    """The kernel of an op that is made of other ops, by which autograd takes it apart; None if it has another one."""
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, DispatchKey.CompositeImplicitAutograd
    is_made_of_ops = has_kernel(func.name(), key) and not has_kernel(func.name(), DispatchKey.CPU)
    return functools.partial(func._op_dk, key) if is_made_of_ops else None


def is_traced_by_fx() -> bool:
    """Whether `make_fx` is on, which would see no op of a recording: modes of torch's own come after all others."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def fake_mode_is_on(own: Any) -> bool:
    """Whether ops are run on fake tensors right now, to learn sizes only, and not in a mode of our own."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) not in (None, own)


def library_runner(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `compile_library` made."""
    return torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1).run


def global_state() -> str:
    """Modes of torch that hold everywhere, as a text: gradients, autocast, the default dtype, threads."""
    return str(GlobalStateGuard().__getstate__())


def global_state_guard(state: str) -> GlobalStateGuard:
    """A guard for modes that were noted before."""
    guard = GlobalStateGuard()
    guard.__setstate__(state)  # type: ignore[attr-defined]
    return guard


def tensor_without_memory(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor on the CPU of which sizes and strides are there, and nothing else: its storage has no address."""
    made: torch.Tensor = empty_strided_cpu(size, stride, dtype)
    take_memory(made)
    return made


def give_memory(storage: torch.UntypedStorage) -> None:
    """Let tensors without memory be read: nobody knows what is in them then."""
    storage._swap_data_ptr_(torch.UntypedStorage(storage.nbytes()))  # type: ignore[attr-defined]


def take_memory(tensor: torch.Tensor) -> None:
    """Let nobody read a tensor, or write to it."""
    storage = tensor.untyped_storage()
    nothing = torch._C._construct_storage_from_data_pointer(0, _CPU, storage.nbytes())
    storage._swap_data_ptr_(nothing)  # type: ignore[attr-defined]
    torch._C._set_throw_on_mutable_data_ptr(tensor)


_CPU = torch.device("cpu")

#: What torch says when someone asks for memory that is not there.
NO_MEMORY = (
    "data is not allocated yet",
    "Cannot access data pointer of Tensor",
    "unallocated storage",
    "invalid python storage",
)


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


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


@cache
def _names_of_saved(kind: type) -> tuple[str, ...]:
    return tuple(name.removeprefix("_raw") for name in dir(kind) if name.startswith("_raw_saved_"))


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


def autocast_state(devices: Sequence[str]) -> tuple[tuple[str, torch.dtype], ...]:
    """The devices among these for which autocast is on, with its dtype."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


def autocast_disabled() -> Any:
    """A context in which no op is autocast: a program already holds its casts."""
    return torch._C._DisableAutocast()


#: Where a selective checkpoint starts to give what it has saved.
CHECKPOINT_OF_SAVED = (torch.utils.checkpoint._CachedTorchDispatchMode, "__enter__")

#: Where a module is called, hooks included.
MODULE_CALL = (torch.nn.Module, "_call_impl")

#: Where a GradScaler steps an optimizer or does not.
SCALED_STEP = (torch.amp.GradScaler, "_maybe_opt_step")


def enter_again(enter: Callable[[Any], Any], mode: Any) -> Any:
    """Let a selective checkpoint give what it has saved each time that it is recomputed, and not only once."""
    kept = vars(mode).setdefault("kept", {key: dict(entries) for key, entries in mode.storage.items()})
    mode.storage.update({key: dict(entries) for key, entries in kept.items()})
    return enter(mode)


_quiet = threading.local()


class _NotWhenQuiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_quiet, "on", False)


for _name in ("torch._subclasses.fake_tensor", "torch._inductor.ir", "torch.fx.experimental.symbolic_shapes"):
    logging.getLogger(_name).addFilter(_NotWhenQuiet())


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep torch from logging what is handled: an error in fake tensors, an op that a library calls by its name."""
    before = getattr(_quiet, "on", False)
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = before


def default_device_of(func: Any) -> torch.device | None:
    """The device on which a function that makes tensors makes them, if `torch.device` as a context says so."""
    modes = _function_modes() if func in _device_constructors() else ()
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)
