"""Dispatch: modes and dispatch keys, and who else is watching the ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._C import DisableTorchFunction as no_function_modes
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _ExcludeDispatchKeyGuard as exclude_keys
from torch._C import _len_torch_function_stack as num_function_modes
from torch._dispatch.python import enable_python_dispatcher as symbolic_kernels
from torch._guards import CompileContext
from torch.overrides import _get_current_function_mode_stack as _function_modes
from torch.utils._device import DeviceContext, _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes as no_dispatch_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as _dispatch_modes

__all__ = [
    "BELOW_AUTOGRAD",
    "TorchDispatchMode",
    "autocast_disabled",
    "autocast_state",
    "below_all_autograd",
    "default_device_of",
    "dispatch_modes",
    "exclude_keys",
    "fake_mode_is_on",
    "is_traced_by_fx",
    "no_dispatch_modes",
    "no_function_modes",
    "num_function_modes",
    "ops_are_transformed",
    "symbolic_kernels",
    "under_foreign_control",
]

#: Dispatch keys that code of a compiled program skips: it is below autograd, and its views are no autograd views.
BELOW_AUTOGRAD = DispatchKeySet(DispatchKey.ADInplaceOrView) | DispatchKeySet(DispatchKey.AutogradFunctionality)

#: The same for kernels of sparse tensors, which see to it that each key of autograd's is skipped.
below_all_autograd = torch._C._AutoDispatchBelowAutograd


_transforms_active = torch._C._are_functorch_transforms_active


_num_dispatch_modes = torch._C._len_torch_dispatch_stack


_is_compiling = torch.compiler.is_compiling


_is_traced_by_dynamo = torch.compiler.is_dynamo_compiling


_forward_ad = torch.autograd.forward_ad


_frame_callback = torch._C._dynamo.eval_frame.get_eval_frame_callback


def under_foreign_control() -> bool:
    """Whether someone else is watching or transforming the ops right now: then the original function must run."""
    return bool(
        _is_traced_by_dynamo()  # which answers it itself
        or (_is_compiling() and CompileContext.try_get() is not None)  # in this thread: the flag is one for all
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


def is_traced_by_fx() -> bool:
    """Whether `make_fx` is on, which would see no op of a recording: modes of torch's own come after all others."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY) is not None


def fake_mode_is_on(own: Any) -> bool:
    """Whether ops are run on fake tensors right now, to learn sizes only, and not in a mode of our own."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) not in (None, own)


def autocast_state(devices: Sequence[str]) -> tuple[tuple[str, torch.dtype], ...]:
    """The devices among these for which autocast is on, with its dtype."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


def autocast_disabled() -> Any:
    """A context in which no op is autocast: a program already holds its casts."""
    return torch._C._DisableAutocast()


def dispatch_modes() -> list[Any]:
    """The dispatch modes that see the ops of this thread, the innermost last."""
    return _dispatch_modes()


def default_device_of(func: Any) -> torch.device | None:
    """The device on which a function that makes tensors makes them, if `torch.device` as a context says so."""
    modes = _function_modes() if func in _device_constructors() else ()
    return next((mode.device for mode in modes if isinstance(mode, DeviceContext)), None)
