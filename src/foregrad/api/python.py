"""`fg.python`: a function of Python's that runs at each call, such as `print` or a logger."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from foregrad.record.recorder import Recorder
from foregrad.torch_private.dispatch import dispatch_modes


def python(function: Callable[..., Any]) -> Callable[..., None]:
    """The function, run at each call of what is compiled, and not at capture alone.

        log = fg.python(lambda loss: print(f"loss {loss:.3f}"))

        @fg.step(model, optimizer)
        def train(x, y):
            ...
            log(loss)

    It is given the tensors as they are at that point, as copies without a history, once the program of the call has
    run; several run in the order of the function. It returns nothing, and what it changes in its tensors stays there.
    Outside of what is compiled it is called as it is.
    """
    if not callable(function):
        raise TypeError(f"fg.python takes a function, not a {type(function).__name__}")

    @functools.wraps(function, updated=())
    def call(*args: Any, **kwargs: Any) -> None:
        for mode in dispatch_modes():
            if isinstance(mode, Recorder):
                mode.python_calls.add(function, args, kwargs)
                return
        function(*args, **kwargs)

    return call
