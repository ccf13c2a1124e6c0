"""The fuzzer itself: eager equals eager, programs are varied, and a wrong compiler is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.fuzz.check import check
from tests.fuzz.generate import program
from tests.fuzz.program import FuzzProgram
from tests.fuzz.shrink import shrink
from tests.fuzz.statements import WRITERS, WRITES

PROGRAMS = [program(seed) for seed in range(200)]


def test_eager_equals_eager() -> None:
    assert [p.seed for p in PROGRAMS if check(p, lambda fn: fn)] == []


def test_a_seed_gives_the_same_program_again() -> None:
    assert program(7) == program(7)
    assert program(7).source() != program(8).source()


def test_programs_are_varied() -> None:
    kinds = {statement.kind for p in PROGRAMS for statement in p.body}
    assert len(kinds) > 0.9 * len(WRITERS)
    assert sum(any(s.kind in WRITES for s in p.body) for p in PROGRAMS) > 0.6 * len(PROGRAMS)
    assert sum(map(has_differentiable_output, PROGRAMS)) > 0.65 * len(PROGRAMS)


def test_shrinking_keeps_the_failure_and_drops_the_rest() -> None:
    failing = next(p for p in PROGRAMS if len(p.body) > 6 and check(p, without_writes))
    smallest = shrink(failing, lambda p: check(p, without_writes))
    assert check(smallest, without_writes)
    assert len(smallest.body) < len(failing.body)


def without_writes(fn: Callable) -> Callable:
    """Puts the old values back into the arguments."""

    def call(*args: Any) -> Any:
        old = [a.detach().clone() for a in args]
        results = fn(*args)
        for a, value in zip(args, old):
            if a.shape == value.shape:
                a.data.copy_(value)
        return results

    return call


def without_aliases(fn: Callable) -> Callable:
    """Clones every output, so that none is an argument or shares its memory."""
    return lambda *args: tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, fn(*args))


def without_versions(fn: Callable) -> Callable:
    """Counts one write too many for each argument."""

    def call(*args: Any) -> Any:
        results = fn(*args)
        for a in args:
            a.detach().zero_() if a.numel() == 0 else a.detach().mul_(1)
        return results

    return call


def with_zeros_for_none(fn: Callable) -> Callable:
    """Ties every fresh output to every argument, so that gradients are zeros where eager has None."""

    def call(*args: Any) -> Any:
        zero = sum((a.sum().real * 0.0).to(torch.float32) for a in args if a.requires_grad)
        results = fn(*args)
        for t in filter(is_fresh, tree_leaves(results)):
            with torch.autograd._unsafe_preserve_version_counter(t):
                t.sub_(zero)
        return results

    return call


def with_scaled_gradients(fn: Callable) -> Callable:
    """Doubles the gradient of every fresh output."""

    def call(*args: Any) -> Any:
        results = fn(*args)
        for t in filter(is_fresh, tree_leaves(results)):
            t.register_hook(lambda gradient: gradient * 2)
        return results

    return call


def is_fresh(t: Any) -> bool:
    """Whether `t` is a differentiable tensor, no view, with a history."""
    return isinstance(t, torch.Tensor) and t.is_floating_point() and not t._is_view() and t.grad_fn is not None


WRONG = {
    without_writes: 0.2,
    without_aliases: 0.7,
    without_versions: 0.9,
    with_zeros_for_none: 0.1,
    with_scaled_gradients: 0.3,
}


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_compiler_is_seen(wrong: Callable) -> None:
    seen = sum(check(p, wrong) is not None for p in PROGRAMS)
    assert seen > WRONG[wrong] * len(PROGRAMS)


def has_differentiable_output(p: FuzzProgram) -> bool:
    scope = p.load()
    try:
        arguments, _ = scope["make_inputs"]()
        outputs = tree_leaves(scope["fn"](*arguments))
    except Exception:
        return False
    finally:
        torch.set_grad_enabled(True)
    return any(isinstance(t, torch.Tensor) and t.requires_grad for t in outputs)
