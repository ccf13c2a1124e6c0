"""Whatever a function reads in Python and the user changes between two calls is seen, as in eager."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import foregrad as fg
from tests.behaviours import changing_code, changing_data, changing_modules  # noqa: F401  they hold the cases
from tests.behaviours.changing import CASES
from tests.compare import Bits, compiled


def results(make, wrap):
    """What every call gives, with gradients."""
    torch.manual_seed(0)
    story = make()
    target = next(story)
    call, found = wrap(target), []
    try:
        while True:
            x = torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_()
            torch.manual_seed(3)
            out = call(x)
            first = out[0] if isinstance(out, tuple) else out
            if first.requires_grad and first.grad_fn is not None:
                first.double().sum().backward()
            found.append((out, x.grad, [p.grad for p in parameters(target)]))
            for parameter in parameters(target):
                parameter.grad = None
            if next(story, story) is story:
                return found
    finally:
        story.close()


def parameters(target):
    return list(target.parameters()) if isinstance(target, nn.Module) else []


def as_step(target):
    """The target inside a training step."""
    weight = nn.Parameter(torch.ones(3))
    state = (target,) if isinstance(target, nn.Module) else ()

    @fg.step(weight, *state, backend="eager", cache=False)
    def step(x):
        weight.grad = None
        out = target(x)
        first, *rest = out if isinstance(out, tuple) else (out,)
        loss = (first * weight).double().sum()
        loss.backward()
        return first.detach(), loss.detach(), *rest

    return step


def eager_step(target):
    weight = nn.Parameter(torch.ones(3))

    def step(x):
        weight.grad = None
        out = target(x)
        first, *rest = out if isinstance(out, tuple) else (out,)
        loss = (first * weight).double().sum()
        loss.backward()
        return first.detach(), loss.detach(), *rest

    return step


def flat(found):
    """Results of which strings are compared by ==, since `assert_close` takes none."""
    strings = [[v for v in out if isinstance(v, (str, list))] if isinstance(out, tuple) else [] for out, _, _ in found]
    tensors = [
        ([v for v in out if isinstance(v, torch.Tensor)] if isinstance(out, tuple) else out, grad, grads)
        for out, grad, grads in found
    ]
    return tensors, strings


def compare(make, wrap, reference):
    found, found_strings = flat(results(make, wrap))
    expected, expected_strings = flat(results(make, reference))
    assert found_strings == expected_strings
    assert len(found) == len(expected) >= 2
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        for a, b in zip(tree_leaves(one), tree_leaves(other), strict=True):
            same = a is b is None or (Bits(a.detach()) == Bits(b.detach()) and a.dtype == b.dtype)
            assert same, f"call {number} gives {a}, eager {b}"


@pytest.mark.parametrize("name", CASES)
def test_a_change_between_two_calls_is_seen(name):
    compare(CASES[name], lambda target: compiled(target, cache=False), lambda target: target)


@pytest.mark.parametrize("name", CASES)
def test_a_change_between_two_steps_is_seen(name):
    compare(CASES[name], as_step, eager_step)


@pytest.mark.parametrize("name", CASES)
def test_what_does_not_change_is_captured_once(name):
    story = CASES[name]()
    target = next(story)
    call = compiled(target, cache=False)
    for _ in range(3):
        call(torch.linspace(-1, 1, 6).reshape(2, 3))
    story.close()
    assert len(fg.explain(call).captures) == 1
