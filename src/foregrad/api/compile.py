"""`fg.compile`: a compiled function or module."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from foregrad.api.compiled import Compiled
from foregrad.api.compiled_module import compile_module
from foregrad.api.options import options_of, refuse_keywords
from foregrad.backends.backend import Backend
from foregrad.cache.store.cache import Cache
from foregrad.runtime.options import Pass


def compile(
    target: Any,
    *,
    backend: str | Backend | None = None,
    passes: Sequence[Pass] = (),
    rng: str = "eager",
    regions: str = "auto",
    dynamic: bool | Mapping[str, Any] | None = None,
    questions: str = "tree",
    python: str = "warn",
    refused: str = "error",
    cache: bool | str | os.PathLike[str] | Cache = True,
    progress: bool = True,
    **others: Any,
) -> Any:
    """The same function or module, running captured programs in place of its code.

    It behaves as the target does: results, gradients of any order, mutation, aliasing, exceptions. A module keeps its
    state_dict keys, attributes, `train()` and `eval()`, and shares them with the module that was given. A call unlike
    those before it is captured anew.

    `backend` is "inductor" (fused C++, the default where there is a compiler), "aoti" (the same as shared libraries),
    "eager" (op by op, bitwise as eager PyTorch) or a function of your own. `rng="eager"` draws the random numbers that
    eager draws, "fast" others, inside fused loops.
    `regions="auto"` compiles what repeats in the model once, "off" the model as a whole. Long work shows what it is
    doing; `progress=False` is quiet.

    `dynamic` says which sizes of arguments vary, so that one program serves them all: None those that have changed
    since the first capture, True all, False none, `{"tokens": (1,)}` or `{"tokens": {1: (2, 4096)}}` these dimensions.

    `questions="tree"` lets Python ask the data (`if mask.all():`, `.item()`, `x[x > 0]`): each call computes what is
    asked and goes on with the program for that answer, and an answer not seen before is captured. "error" refuses it.

    What the function does in Python beside its results, such as a log line, happens at capture only: `python="warn"`
    names each such thing once, `"error"` refuses it, `"allow"` is quiet. `fg.python` makes a function that runs at each
    call.

    `refused="error"` raises `CaptureError` for what cannot be captured; with `"eager"` it runs as is, with a warning.

    `cache` is where compiled programs are kept for later processes, which then start without tracing: True is this
    user's folder, for the backends that compile; a path, a URL or an `fg.Cache` is used with any; False keeps nothing.
    """
    refuse_keywords("fg.compile", others)
    options = options_of(
        backend=backend,
        passes=passes,
        rng=rng,
        regions=regions,
        dynamic=dynamic,
        questions=questions,
        python=python,
        refused=refused,
        cache=cache,
        progress=progress,
    )
    if isinstance(target, torch.nn.Module):
        return compile_module(target, options)
    if not callable(target):
        raise TypeError(f"fg.compile takes a function or a module, not a {type(target).__name__}")
    return Compiled(target, options)
