"""Guards of modules in files: flags, attributes, hooks and children are what they were at the capture."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from foregrad.core.generated import Line
from foregrad.core.source import Source
from foregrad.runtime.guards.reasons import check_that
from foregrad.torch_private.modules import HOOKS, missing_tensors


def check_modules(
    source: Source, modules: tuple[torch.nn.Module, ...], path: Callable[[torch.nn.Module], str]
) -> list[Line]:
    """The checks of the modules that the function called, as lines of the body of a call."""
    if not modules:
        return []
    lines: list[Line] = ["    try:"]
    for module in modules:
        different, label = " or ".join(_differs(source, module)), f"{type(module).__name__} {path(module)}".strip()
        lines.append(replace(check_that(different, source.name("m", module), label, module), indent=" " * 8))
    return [*lines, "    except (AttributeError, KeyError):", "        return MISS"]


def _differs(source: Source, module: torch.nn.Module) -> Iterator[str]:
    """Conditions under which a module is not as it was."""
    name = source.name("m", module)
    yield f"{name}.training is not {module.training}"
    yield f"len({name}.__dict__) != {len(module.__dict__)}"
    for key, value in module.__dict__.items():
        plain = f"{name}.{key}" if _is_plain_attribute(module, key) else f"{name}.__dict__[{key!r}]"
        if key in HOOKS:
            yield f"{plain} != {source.name('hooks', value.copy())}" if value else plain
        elif key == "_modules":
            yield f"{plain} != {source.name('children', dict(value))}" if value else plain
        elif _is_simple(value) and key not in ("training", "call_super_init", "dump_patches"):
            yield f"{plain} != {source.constant(value)}"
        elif type(value) in (list, dict) and not key.startswith("_") and _is_simple(tuple(value)):
            yield f"{plain} != {source.name('k', value.copy())}"
    for key in missing_tensors(module):
        yield f"({name}._parameters | {name}._buffers).get({key!r}) is not None"


def _is_plain_attribute(module: torch.nn.Module, key: str) -> bool:
    """Whether asking a module for an attribute just looks into its dict."""
    return key.isidentifier() and not keyword.iskeyword(key) and not hasattr(type(module), key)


def _is_simple(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_simple(v) for v in value)
    return isinstance(value, (bool, int, float, str, type(None)))
