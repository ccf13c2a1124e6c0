"""Devices: the ghost of a tensor that is not on the CPU is a meta tensor, and stands for one device.

Meta tensors are plain tensors without data, so autograd treats them as it would treat those of the device itself, which
need not be there. The user's code sees the device for which they stand, and so does the recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.torch_private.dispatch import default_device_of

Tensor = torch.Tensor
CPU, META = torch.device("cpu"), torch.device("meta")


class Device:
    """The one device besides the CPU on which a recording has tensors; `true` is None until it meets one."""

    def __init__(self) -> None:
        self.true: torch.device | None = None

    @property
    def is_autocast(self) -> bool:
        """Whether autocast is on. It would ask the tensors themselves for their device, and leave ghosts alone."""
        known = self.true is not None and torch.amp.is_autocast_available(self.true.type)
        return known and torch.is_autocast_enabled(self.true.type)  # type: ignore[union-attr]

    def stand_for(self, device: torch.device) -> None:
        """Let meta tensors stand for tensors on this device from now on."""
        if device.type == "cpu" or device == self.true:
            return
        if self.true is not None:
            raise CaptureError(
                f"tensors on {self.true} and on {device} in one function cannot be captured yet; "
                "only one device besides the CPU can."
            )
        self.true = device

    def shown(self, device: torch.device) -> torch.device:
        """The device for which a ghost's device stands."""
        return self.true if self.true is not None and device.type == "meta" else device

    def carrier(self, device: Any) -> torch.device:
        """The device of a ghost that stands for a tensor on this one, however the user spells it."""
        wanted = torch.device(device)
        if wanted.type == "cpu":
            return wanted
        if self.true is not None and wanted.type == self.true.type and wanted.index in (None, self.true.index):
            return META
        self.stand_for(wanted)
        return META

    def answer(self, func: Any, args: Any) -> Any:
        """What Python is told about the device of a tensor; `func` is one of `ASKS`."""
        return ASKS[func](args[0], self.shown(args[0].device))

    def inward(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """A call of the user's with every device replaced by that of its ghosts."""
        if func is torch.device:
            return func, args, kwargs
        if kwargs.get("device") is None and (default := default_device_of(func)) is not None:
            kwargs = {**kwargs, "device": default}
        if func in _MOVES:
            options = dict(zip(("device", "non_blocking"), args[1:], strict=False)) | kwargs
            func, args, kwargs = Tensor.to, args[:1], {**options, "device": options.get("device") or _MOVES[func]}
        elif func is Tensor.to and len(args) > 1 and isinstance(args[1], (str, int)):
            args = (args[0], torch.device(args[1]), *args[2:])
        elif func in (Tensor.__getitem__, Tensor.__setitem__):
            args = (args[0], _index(args[1]), *args[2:])
        args = tuple([self.carrier(a) if isinstance(a, torch.device) else a for a in args])
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": self.carrier(kwargs["device"])}
        return func, args, kwargs


def _index(value: Any) -> Any:
    """An index with tensors for its lists of numbers, which torch would make on the device of what is indexed."""
    if isinstance(value, tuple):
        return tuple(map(_index, value))
    is_numbers = isinstance(value, (list, range)) and all(isinstance(v, int) for v in value)
    return torch.tensor(list(value), device="cpu").to(META) if is_numbers else value


def _is_type(name: str) -> Callable[[Tensor, torch.device], bool]:
    return lambda tensor, device: device.type == name


_TYPES = ("cpu", "cuda", "meta", "mps", "mtia", "xla", "xpu")

#: How Python asks for the device of a tensor, and the answer.
ASKS: dict[Any, Callable[[Tensor, torch.device], Any]] = {
    Tensor.device.__get__: lambda tensor, device: device,
    Tensor.get_device: lambda tensor, device: Tensor.get_device(tensor) if device.index is None else device.index,
    Tensor.type: lambda tensor, device: Tensor.type(tensor).replace("meta", device.type),
    **{getattr(Tensor, f"is_{name}").__get__: _is_type(name) for name in _TYPES},
}

#: Methods with a device in their name.
_MOVES = {getattr(Tensor, name): name for name in ("cuda", "xpu", "mtia") if hasattr(Tensor, name)}
