"""Histories: an input that gets another geometry, other data and another history in one call."""

import pytest
import torch

from tests.compare import assert_same, leaf


class Doubled(torch.autograd.Function):
    """Writes to its argument, whose gradient it makes three times as large."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def non_leaf():
    return leaf(2, 3).sin()


def view_of_non_leaf():
    return leaf(3, 3).sin()[1:]


def view_of_view():
    return leaf(6).sin().view(2, 3).view(2, 3)


MAKERS = [non_leaf, view_of_non_leaf, view_of_view]


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_an_input_that_was_transposed(make):
    def f(x):
        x.t_()
        return Doubled.apply(x).sin()

    assert_same(f, lambda: (make(),), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_an_input_that_is_transposed_afterwards(make):
    def f(x):
        Doubled.apply(x)
        x.t_()
        return x.sin()

    assert_same(f, lambda: (make(),), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_a_part_of_an_input_that_was_transposed(make):
    def f(x):
        x.t_()
        Doubled.apply(x[0])
        x.unsqueeze_(0)
        return x.sin()

    assert_same(f, lambda: (make(),), calls=2)


def test_an_input_is_written_and_then_detached_from_its_history():
    def f(x, w):
        x.mul_(w)
        x.detach_()
        return x * w

    assert_same(f, lambda: (non_leaf(), leaf(2, 3)), calls=2)


def test_an_input_is_detached_transposed_and_gets_a_new_history():
    def f(x, w):
        x.mul_(w)
        x.t_().detach_()
        x.mul_(w.t()).t_()
        return x.sin()

    assert_same(f, lambda: (non_leaf(), leaf(2, 3)), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_transposed_input_that_nobody_wrote_gets_no_new_history(make):
    def f(x, w):
        x.t_().unsqueeze_(0).squeeze_(0)
        return x.sin() * w

    assert_same(f, lambda: (make(), leaf(3, 2)), calls=2)
