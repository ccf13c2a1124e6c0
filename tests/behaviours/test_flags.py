"""Flags: inputs that the function tells to require a gradient or not, in the order in which it does."""

import pytest
import torch

from tests.compare import assert_refused, assert_same, grads_of, leaf, same_as_eager


def detached_and_flagged(x, w):
    x.detach_().requires_grad_()
    return x * w


def used_detached_and_flagged(x, w):
    y = x * w
    x.detach_().requires_grad_()
    return y, x * w


def detached_written_and_flagged(x, w):
    x.detach_().mul_(2).requires_grad_()
    return x * w


def stepped(x, w):
    """A step of gradient ascent, as for adversarial examples."""
    x.detach_().requires_grad_()
    (gradient,) = torch.autograd.grad((x * w).square().sum(), x)
    with torch.no_grad():
        x.add_(gradient.sign(), alpha=0.1)
    return x * w


def flagged_written_detached_and_flagged(x, w):
    x.requires_grad_(False)
    x.mul_(w).detach_()
    x.requires_grad_()
    return x * 2


def flagged_twice(x, w):
    x.detach_().requires_grad_()
    x.requires_grad_(False)
    return x * w


def looked_at_between(x, w):
    before = x[:1]
    x.detach_()
    between = x[:1]
    x.requires_grad_()
    return before, between, x[:1], x * w


FUNCTIONS = [
    detached_and_flagged,
    used_detached_and_flagged,
    detached_written_and_flagged,
    stepped,
    flagged_written_detached_and_flagged,
    flagged_twice,
    looked_at_between,
]


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("make", [leaf, torch.randn])
def test_flags_of_an_input_change_as_in_eager(function, make):
    assert_same(function, lambda: (make(2, 3), leaf(2, 3)), calls=2)


@pytest.mark.parametrize("free", [lambda x: x.requires_grad_(False), lambda x: x.detach_()])
@pytest.mark.parametrize("make", [leaf, torch.randn])
@same_as_eager
def test_an_input_that_is_no_longer_a_leaf_is_given_a_history(wrap, free, make):
    def f(x, w):
        free(x)
        x.mul_(w)
        return x[:1], x * 2

    torch.manual_seed(0)
    x, w = make(2, 3), leaf(2, 3)
    view, result = wrap(f)(x, w)
    (x.sum() + view.sum() + result.sum()).backward()
    return view, result, x, grads_of(w)


def test_a_square_input_is_transposed_and_told_to_require_a_gradient():
    def f(x, w):
        x.t_()
        before = x[:1]
        x.requires_grad_()
        return before, x * w

    assert_same(f, lambda: (torch.randn(2, 2), leaf(2, 2)), calls=2)


def test_an_input_with_a_history_is_detached_in_place():
    def f(x, w):
        x.detach_()
        return x * w

    assert_same(f, lambda: (leaf(2, 3).sin(), leaf(2, 3)), calls=2)


def test_an_input_with_a_history_that_becomes_a_leaf_is_refused():
    """Gradients would arrive at two places: at its history, and at the tensor itself."""

    def f(x, w):
        x.detach_()
        x.requires_grad_()
        return x * w

    assert_refused(f, (leaf(2, 3).sin(), leaf(2, 3)), at="x.requires_grad_()")
