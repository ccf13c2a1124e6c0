"""The part of torch that makes every training process slow to start.

An optimizer switches torch.compile off inside some of its methods, and the first time that imports all of
`torch._dynamo`: seconds. Where that was never imported there is nothing to switch off."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch.optim import Optimizer

#: Where torch keeps the variant of a function that runs with torch.compile switched off.
_VARIANT = "__dynamo_disable"
_METHODS = ("add_param_group", "zero_grad", "load_state_dict", "state_dict")


def set_lazy_dynamo(is_lazy: bool) -> None:
    """Whether optimizers are built, cleared and loaded without an import of `torch._dynamo`."""
    for name in _METHODS:
        method = getattr(Optimizer, name)
        function = getattr(method, "__wrapped__", None)
        if function is None:
            continue
        variant = vars(function).get(_VARIANT)
        if is_lazy and variant is None:
            setattr(function, _VARIANT, _as_it_is(method, function))
        elif not is_lazy and getattr(variant, "__module__", "") == __name__:
            delattr(function, _VARIANT)


def _as_it_is(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, until torch.compile is there: then the method makes the variant that it always made."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if "torch._dynamo" not in sys.modules:
            return function(*args, **kwargs)
        vars(function).pop(_VARIANT, None)
        return method(*args, **kwargs)

    return run
