"""Backwards of custom Functions that write to what they were given in forward."""

import pytest
import torch

import foregrad as fg
from tests.compare import also_compiled, compiled, grads_of, leaf, same_as_eager


class Doubles(torch.autograd.Function):
    """Its backward writes to its argument."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        x.mul_(2)
        return gradient.clone()


def product(a, b):
    return a * Doubles.apply(b)


@also_compiled
@pytest.mark.parametrize("kind", ["plain", "leaf", "no leaf"])
@same_as_eager
def test_a_backward_that_writes_to_an_input(wrap, kind):
    run, a, start = wrap(product), leaf(3, 3), leaf(3, 3)
    b = {"plain": start.detach().clone(), "leaf": start, "no leaf": start.clone()}[kind]
    run(a, b).sum().backward()
    return grads_of(a, start), b.detach(), b._version


@same_as_eager
def test_a_backward_that_writes_to_an_input_which_another_node_has_read(wrap):
    start = leaf(3)
    x = start.clone()
    wrap(lambda t: Doubles.apply(t) * t)(x).sum().backward()
    return grads_of(start), x.detach()


@same_as_eager
def test_calls_after_a_backward_has_written_to_an_input(wrap):
    run, a, b = wrap(product), leaf(3, 3), leaf(3, 3)
    for _ in range(3):
        run(a, b).sum().backward()
    return grads_of(a, b), b.detach(), b._version


@same_as_eager
def test_a_backward_from_each_result_where_one_writes(wrap):
    run, a, b = wrap(lambda a, b: (product(a, b), a * 3, b * b)), leaf(3, 3), leaf(3, 3)
    for place in (0, 1, 2, 0):
        run(a, b)[place].sum().backward()
    return grads_of(a, b), b.detach()


@same_as_eager
def test_a_second_backward_finds_that_the_first_has_written(wrap):
    a, b = leaf(3, 3), leaf(3, 3)
    out = wrap(product)(a, b)
    out.sum().backward(retain_graph=True)
    out.sum().backward()


@same_as_eager
def test_a_step_whose_backward_writes_to_a_parameter(wrap):
    a, b = leaf(3, 3), leaf(3, 3)

    def f():
        loss = product(a, b).sum()
        loss.backward()
        return loss.detach()

    run = wrap(f)
    return [run() for _ in range(3)], grads_of(a, b), b.detach(), b._version


class Clears(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        out = x.exp()
        ctx.save_for_backward(out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        (out,) = ctx.saved_tensors
        found = gradient * out
        out.zero_()
        return found


def test_a_backward_that_writes_to_a_result_is_refused():
    out = compiled(lambda x: Clears.apply(x))(leaf(3))
    with pytest.raises(fg.CaptureError, match="writes to a result of the function"):
        out.sum().backward()


@same_as_eager
def test_a_backward_that_writes_to_a_value_of_the_forward(wrap):
    x = leaf(3)
    out = wrap(lambda t: Clears.apply(t).sin())(x)
    out.sum().backward()
    return out, grads_of(x)
