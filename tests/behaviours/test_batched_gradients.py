"""Batched gradients through a compiled call: `is_grads_batched`, vectorized Jacobians, `vmap` around a backward.

They are computed example by example, so they agree with those of eager, whose ops are batched, to rounding.
"""

import pytest
import torch
from torch.autograd.functional import hessian, jacobian

from tests.compare import HigherGradients, compiled, same_as_eager, some_compiled

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")


def leaf(*shape):
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


def writes_to_a_slice(x, b):
    y = x * 1.0
    y.narrow(1, 2, 2).narrow(0, 1, 2).mul_(b)
    return y


def writes_to_a_diagonal(x, b):
    y = x.clone()
    y.diagonal()[:2].add_(b[0].sin())
    return y.t()


def writes_rows(x, b):
    out = torch.zeros(4, 5, dtype=x.dtype)
    for i in range(4):
        out[i] = x[i].sin() * b.sum()
    return out


def two_results(x, b):
    return x[1:3, ::2].exp(), (x.unfold(0, 2, 1) * b.mean()).cos()


FUNCTIONS = {
    "a write to a slice": writes_to_a_slice,
    "a write to a diagonal": writes_to_a_diagonal,
    "rows one by one": writes_rows,
    "slices": lambda x, b: x[1:3, ::2].sin() * b[0, 0],
    "indices": lambda x, b: x[torch.tensor([0, 2, 2])].sin() + b.prod(),
    "a mask": lambda x, b: torch.where(x > 0, x * b[0, 1], x.exp()),
    "windows": lambda x, b: x.unfold(1, 3, 2).tanh() * b[1, 1],
    "geometry": lambda x, b: x.as_strided((3, 3), (1, 2), 1).sin() * b.sum(),
    "matrices": lambda x, b: x[:2, :2] @ b @ x[:2],
    "scatter": lambda x, b: x.scatter_add(1, torch.tensor([[0, 0], [1, 4]]), b).square(),
    "cumulative": lambda x, b: x.cumsum(0).softmax(1) * b.norm(),
    "pieces": lambda x, b: torch.cat([part.sum(0, keepdim=True) * b[0, 0] for part in x.split(2)]),
    "channels": lambda x, b: torch.nn.functional.conv1d(x[None], b[:, None, :].expand(2, 4, 2)),
}


@pytest.mark.parametrize("name", some_compiled(FUNCTIONS, "a write to a slice", "windows"))
@same_as_eager
def test_a_batch_of_gradients(wrap, name):
    inputs = leaf(4, 5), leaf(2, 2)
    out = wrap(FUNCTIONS[name])(*inputs)
    tangents = torch.randn(3, *out.shape, dtype=out.dtype)
    return HigherGradients(torch.autograd.grad(out, inputs, tangents, is_grads_batched=True))


@pytest.mark.parametrize("name", FUNCTIONS)
@same_as_eager
def test_a_vectorized_jacobian_and_hessian(wrap, name):
    inputs, function = (leaf(4, 5), leaf(2, 2)), wrap(FUNCTIONS[name])
    second = hessian(lambda x, b: function(x, b).sin().sum(), inputs, vectorize=True)
    return HigherGradients([*jacobian(function, inputs, vectorize=True), *(one for row in second for one in row)])


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradcheck_with_batched_gradients(name):
    inputs, function = (leaf(4, 5), leaf(2, 2)), compiled(FUNCTIONS[name])
    assert torch.autograd.gradcheck(function, inputs, check_batched_grad=True)


@pytest.mark.parametrize("name", ["a write to a slice", "slices", "matrices", "windows"])
def test_gradgradcheck_with_batched_gradients(name):
    inputs, function = (leaf(4, 5), leaf(2, 2)), compiled(FUNCTIONS[name])
    assert torch.autograd.gradgradcheck(function, inputs, check_batched_grad=True)


@same_as_eager
def test_a_batch_from_some_of_the_results(wrap):
    inputs = leaf(4, 5), leaf(2, 2)
    first, second = wrap(two_results)(*inputs)
    alone = torch.autograd.grad(
        second, inputs, torch.randn(3, *second.shape, dtype=torch.float64), retain_graph=True, is_grads_batched=True
    )
    tangents = [torch.randn(2, *out.shape, dtype=torch.float64) for out in (first, second)]
    return HigherGradients([*alone, *torch.autograd.grad((first, second), inputs, tangents, is_grads_batched=True)])


@pytest.mark.parametrize("name", ["a write to a slice", "windows", "geometry"])
@same_as_eager
def test_vmap_around_a_backward(wrap, name):
    inputs = leaf(4, 5), leaf(2, 2)
    out = wrap(FUNCTIONS[name])(*inputs)

    def pulled_back(tangent):
        return torch.autograd.grad(out, inputs, tangent, retain_graph=True)

    once = torch.func.vmap(pulled_back)(torch.randn(3, *out.shape, dtype=out.dtype))
    twice = torch.func.vmap(torch.func.vmap(pulled_back, in_dims=-1, out_dims=1))(
        torch.randn(2, *out.shape, 3, dtype=out.dtype)
    )
    return HigherGradients([*once, *twice])


@same_as_eager
def test_a_batch_without_examples(wrap):
    inputs = leaf(4, 5), leaf(2, 2)
    out = wrap(writes_to_a_slice)(*inputs)
    return torch.autograd.grad(out, inputs, torch.zeros(0, 4, 5, dtype=out.dtype), is_grads_batched=True)


@same_as_eager
def test_a_batch_of_gradients_that_are_differentiated_again(wrap):
    inputs = leaf(4, 5), leaf(2, 2)
    out = wrap(writes_to_a_slice)(*inputs)
    tangents = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad(out.square(), inputs, tangents, is_grads_batched=True, create_graph=True)
    return HigherGradients(torch.autograd.grad(sum(g.sin().sum() for g in first), (*inputs, tangents)))
