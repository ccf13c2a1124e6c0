"""Impure ops: those that draw random numbers, and those with effects. They run once, in order, and are never merged.

Random ops are known by torch's tag. An op has an effect if it is registered as effectful, if FX was told that it has a
side effect, if it gives nothing (it checks or prints), or if it talks to other processes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from foregrad.torch_private.ops import OpOverload, is_marked_effectful, registered_effect, schema_of

ORDERED = "ordered"  # effects of this process
COLLECTIVE = "collective"  # messages, which other processes wait for

_COLLECTIVES = {"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "c10d_functional", "c10d"}


@cache
def is_random(func: OpOverload) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


_REJECTION_SAMPLERS = {"aten::poisson", "aten::binomial", "aten::_standard_gamma", "aten::_sample_dirichlet"}


def draws(func: OpOverload, args: Any, kwargs: Any) -> bool:
    """Whether a call draws numbers: attention that drops nothing out does not."""
    if not is_random(func):
        return False
    for place, argument in enumerate(schema_of(func).arguments):
        if argument.name == "dropout_p":
            given = kwargs.get("dropout_p", args[place] if place < len(args) else argument.default_value)
            return not (isinstance(given, float) and given == 0.0)
    return True


def goes_by_data(func: OpOverload) -> bool:
    """Whether the number of random numbers that an op draws depends on its data, as in rejection sampling."""
    return func.name().split(".")[0] in _REJECTION_SAMPLERS


def effect_of(func: OpOverload) -> str | None:
    """The kind of effect that an op has beside what it gives and writes; None if it has none."""
    known = _effect_by_schema(func)
    if known is None and (registered_effect(func) or is_marked_effectful(func)):
        return ORDERED
    return known


@cache
def _effect_by_schema(func: OpOverload) -> str | None:
    if func.namespace in _COLLECTIVES:
        return COLLECTIVE
    gives_nothing = not schema_of(func).returns and (not schema_of(func).is_mutable or func.namespace != "aten")
    return ORDERED if gives_nothing else None


_CHECKS = {
    "aten::_linalg_check_errors",
    "aten::_assert_async",
    "aten::_assert_scalar",
    "aten::_assert_tensor_metadata",
    "aten::_functional_assert_async",
    "aten::_functional_assert_scalar",
}


def only_checks(func: OpOverload) -> bool:
    """Whether the effect of an op is an error, or none."""
    return func.name().split(".")[0] in _CHECKS


def with_own_generator(func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """The arguments of a call with a new generator among them, if the op takes one."""
    for place, argument in enumerate(schema_of(func).arguments):
        if "Generator" in str(argument.type):
            if not argument.kwarg_only and place < len(args):
                return (*args[:place], torch.Generator(), *args[place + 1 :]), kwargs
            return args, {**kwargs, argument.name: torch.Generator()}
    return args, kwargs


def generator_in(args: Any, kwargs: Any) -> torch.Generator | None:
    """The generator that a call is given."""
    return next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)), None)
