"""Tangents: which there are, their layout, absent ones, ones that are something else too (TAN-1 to TAN-4)."""

import pytest
import torch

import foregrad as fg
from tests.compare import also_compiled, assert_same, grads_of, leaf, same_as_eager


def num_tangents(fn, *args):
    return sum(item.role == "tangent" for item in fg.capture(fn, *args).signature.inputs)


# TAN-1: which tangents there are


@also_compiled
def test_TAN_1_one_tangent_for_each_written_input_and_each_differentiable_root():
    def f(x, w):
        x.mul_(w)
        y = w * 2
        return y.view(-1), y.t(), w * 3

    assert num_tangents(f, leaf(2, 2).clone(), leaf(2, 2)) == 3
    assert_same(f, lambda: (leaf(2, 2).clone(), leaf(2, 2)))


def test_TAN_1_no_tangent_for_aliases_of_inputs_and_for_what_has_no_gradient():
    def f(x):
        return x.t(), x, x.argmax(), (x * 2).detach(), x * 3

    assert num_tangents(f, leaf(2, 2)) == 1
    assert num_tangents(f, torch.randn(2, 2)) == 0
    assert_same(f, lambda: (leaf(2, 2),))


# TAN-2: layout


def channels_last():
    return torch.randn(1, 2, 3, 3).to(memory_format=torch.channels_last).requires_grad_()


TANGENTS = {
    "contiguous": lambda t: torch.randn(t.shape),
    "channels last": lambda t: torch.randn(t.shape).to(memory_format=torch.channels_last),
    "expanded": lambda t: torch.randn(()).expand(t.shape),
    "reversed strides": lambda t: torch.randn(t.shape[::-1]).permute(3, 2, 1, 0),
    "a slice": lambda t: torch.randn(*t.shape, 2)[..., 1],
}


@pytest.mark.parametrize("given", TANGENTS.values(), ids=TANGENTS)
@pytest.mark.parametrize("make", [channels_last, lambda: leaf(1, 2, 3, 3)], ids=["channels last", "contiguous"])
@same_as_eager
def test_TAN_2_a_tangent_of_any_layout_is_accepted(wrap, make, given):
    x = make()
    out = wrap(lambda t: t.sin())(x)
    out.backward(given(out))
    return out, grads_of(x), x.grad.stride()


@same_as_eager
def test_TAN_2_tangents_of_an_expanded_output(wrap):
    x = leaf(2)
    out = wrap(lambda t: t.expand(3, 2))(x)
    out.sum().backward()
    (out * torch.randn(3, 2)).sum().backward()
    return grads_of(x)


@same_as_eager
def test_TAN_2_a_tangent_of_the_wrong_shape_is_refused_as_eager_refuses_it(wrap):
    wrap(lambda t: t.sin())(leaf(3)).backward(torch.ones(4))


# TAN-3: absent tangents


@pytest.mark.parametrize("used", [0, 1])
@same_as_eager
def test_TAN_3_what_no_tangent_reaches_gets_no_gradient(wrap, used):
    a, b = leaf(2), leaf(2)
    wrap(lambda a, b: (a * 2, b * 3))(a, b)[used].sum().backward()
    return grads_of(a, b)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=str)
@same_as_eager
def test_TAN_3_a_written_input_and_outputs_used_in_part(wrap, used):
    def f(x, y, w):
        x.mul_(w)
        return y * w, y.sin()

    start, y, w = leaf(2), leaf(2), leaf(2)
    x = start.clone()
    results = (x, *wrap(f)(x, y, w))
    sum(results[index].sum() for index in used).backward()
    return grads_of(start, y, w)


class SeesAbsentTangents(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return (first if first is not None else 10) * (second if second is not None else 100)


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@same_as_eager
def test_TAN_3_a_custom_function_that_asks_for_none_gets_none(wrap, used):
    x = leaf(2)
    outs = wrap(lambda x: SeesAbsentTangents.apply(x))(x)
    torch.autograd.backward([outs[index] for index in used], [torch.ones(2) * 2 for _ in used])
    return grads_of(x)


# TAN-4: a tangent that is also something else


@same_as_eager
def test_TAN_4_an_input_as_tangent(wrap):
    x = leaf(2)
    wrap(lambda t: t * t)(x).backward(x.detach())
    return grads_of(x)


@same_as_eager
def test_TAN_4_one_tensor_as_tangent_of_two_outputs(wrap):
    x, tangent = leaf(2), torch.randn(2)
    first, second = wrap(lambda t: (t.sin(), t * t))(x)
    torch.autograd.backward([first, second], [tangent, tangent])
    return grads_of(x), tangent


@same_as_eager
def test_TAN_4_an_output_as_its_own_tangent(wrap):
    x = leaf(2)
    out = wrap(lambda t: t.exp())(x)
    out.backward(out.detach())
    return grads_of(x)


@pytest.mark.parametrize(
    "pointwise", ["softplus", "hardswish", "hardtanh", "hardsigmoid", "elu", "celu", "mish", "gelu", "logsigmoid"]
)
def test_a_gradient_whose_dimensions_lie_in_another_order(pointwise):
    """The kernel's result is laid out as the gradient is, where torch's fake one is laid out as the input."""

    def function(x):
        y = getattr(torch.nn.functional, pointwise)(x.view(2, 6, 4))
        return (y.transpose(1, 2) * torch.arange(48.0).view(2, 4, 6)).sum()

    assert_same(function, lambda: (leaf(12, 4),))
