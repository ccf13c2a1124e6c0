"""Arguments: what a call is given, by the names of the function's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from foregrad.substrate import tree_flatten_with_path


def function_of(target: Any) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """What to call, and the function whose variables it can reach."""
    if isinstance(target, torch.nn.Module):
        return target, type(target).forward
    if not callable(target):
        raise TypeError(f"foregrad captures functions and modules, not {type(target).__name__}")
    body = target
    while isinstance(body, functools.partial):
        body = body.func
    return target, body


def argument_names(arguments: dict[str, Any]) -> dict[int, str]:
    """The tensors and generators among the arguments, by id."""
    names: dict[int, str] = {}
    for prefix, value in arguments.items():
        leaves, _ = tree_flatten_with_path(value)
        for path, leaf in leaves:
            if isinstance(leaf, (torch.Tensor, torch.Generator)):
                names.setdefault(id(leaf), prefix + "".join(_step(key) for key in path))
    return names


def bind_arguments(body: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the function's parameters."""
    try:
        parameters = list(inspect.signature(body).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    if parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    bound = {p.name: a for p, a in zip(plain, args, strict=False)}
    for place, value in enumerate(args[len(plain) :]):
        bound[f"args.{place}"] = value
    return {**bound, **kwargs}


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return f".{getattr(key, attribute)}"
    return f".{key}"
