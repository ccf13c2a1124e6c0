"""What is done in C++, where no dispatch mode sees it: the work of some modules, and some hooks on gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.torch_private.native_code import is_native_object

#: Objects of C++ by their classes: what a module that holds one does, and what to do in place of capturing it.
_KNOWN = {
    "Reducer": (
        "averages gradients over processes by hooks in C++",
        "Compile the module inside, and wrap that: DistributedDataParallel(fg.compile(module)).",
    ),
    "ScriptModule": (
        "is a torch.jit module, whose code and parameters are in C++",
        "Compile the module that it was made from.",
    ),
}


def refuse_native(module: torch.nn.Module, where: str = "") -> None:
    """A program would do without what the module does in C++ at each call."""
    kinds = [type(value).__name__ for value in vars(module).values() if is_native_object(value)]
    if isinstance(module, torch.jit.ScriptModule):  # one that was traced holds it one level down
        kinds.append("ScriptModule")
    if not kinds:
        return
    kind = next(filter(_KNOWN.__contains__, kinds), kinds[0])
    does, instead = _KNOWN.get(
        kind, (f"works through a C++ {kind}", "Leave it outside, or compile the modules inside it.")
    )
    name = type(module).__name__
    raise CaptureError("\n".join(filter(None, (f"{name} {does}, which a program cannot repeat.", where, instead))))


def refuse_native_argument(func: Any, value: Any, where: Callable[[], str]) -> None:
    """A program would keep the contents of the object as they are now: nobody sees when a model gets another one."""
    if is_native_object(value):
        raise CaptureError(
            f"{func} takes a {type(value).__name__} of C++, such as packed weights of a quantized layer, which a "
            f"program would keep as it is now.\n{where()}\nLeave the layer outside."
        )
