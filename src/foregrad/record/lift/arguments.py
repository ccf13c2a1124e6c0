"""Arguments: what a call is given, by the names of the function's parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from foregrad.torch_private.pytree import tree_flatten_with_path


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


def bind_arguments(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the parameters that a call of the target fills, each by a name of its own."""
    parameters = _parameters(target)
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    others = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "kwargs")
    bound = dict(zip(plain, args, strict=False))
    bound.update((f"{rest}.{place}", value) for place, value in enumerate(args[len(plain) :]))
    for key, value in kwargs.items():  # `f(x, /, **others)` takes an `x` in others too
        bound[f"{others}.{key}" if key in bound else key] = value
    return bound


def order_counts(target: Any, kwargs: Any) -> bool:
    """Whether a function can tell in which order keyword arguments were given: it takes several by `**`."""
    called = type(target).forward.__get__(target) if isinstance(target, torch.nn.Module) else target
    try:
        parameters = inspect.signature(called, follow_wrapped=False).parameters.values()
    except (TypeError, ValueError):
        return len(kwargs) > 1
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return any(p.kind is p.VAR_KEYWORD for p in parameters) and len(kwargs.keys() - named) > 1


def _parameters(target: Any) -> list[inspect.Parameter]:
    """The parameters of a target, without the one that a method is bound to."""
    called = type(target).forward.__get__(target) if isinstance(target, torch.nn.Module) else target
    try:
        own = list(inspect.signature(called, follow_wrapped=False).parameters.values())
        passes_on = own and all(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in own)
        return list(inspect.signature(called).parameters.values()) if passes_on else own
    except (TypeError, ValueError):
        return []


def argument_names(arguments: dict[str, Any]) -> dict[int, str]:
    """The tensors and generators among the arguments, by id; what is given twice has the name of the first place."""
    names: dict[int, str] = {}
    for name, leaf in named_leaves(arguments):
        if isinstance(leaf, (torch.Tensor, torch.Generator)):
            names.setdefault(id(leaf), name)
    return names


def named_leaves(arguments: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Everything among the arguments, with its name; the keys `1` and `"1"` of a dict do not share theirs."""
    taken: set[str] = set()
    for prefix, value in arguments.items():
        for path, leaf in tree_flatten_with_path(value)[0]:
            name = prefix + "".join(map(_step, path))
            while name in taken:
                name += "_"
            taken.add(name)
            yield name, leaf


def _step(key: Any) -> str:
    for attribute in ("key", "idx", "name"):
        if hasattr(key, attribute):
            return f".{getattr(key, attribute)}"
    return f".{key}"
