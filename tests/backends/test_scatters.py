"""Scatters in compiled code: Inductor writes some of them in place over values that it still reads (torch 2.13)."""

import pytest
import torch

from tests.compare import compiled

PLACES = torch.arange(4, -1, -1)
ALL = PLACES[None, :, None].expand(5, 5, 4)
PUTS = {
    "index_add": lambda y: y.index_add(1, PLACES, y),
    "index_copy": lambda y: y.index_copy(1, PLACES, y),
    "index_put": lambda y: y.index_put((PLACES,), y, accumulate=True),
    "scatter_add": lambda y: y.scatter_add(1, ALL, y),
    "of another": lambda y: y.cumsum(1).sin().index_add(1, PLACES, y.cumsum(1).cos()),
}


@pytest.mark.parametrize("name", PUTS)
def test_values_are_put_into_the_tensor_that_they_come_from(name):
    def function(x):
        return PUTS[name](x.sin() + 1)

    f, x = compiled(function, backend="inductor"), torch.linspace(-1, 1, 100).view(5, 5, 4)
    torch.testing.assert_close(f(x), function(x))


def test_the_gradient_of_sorted_values_beside_another():
    def function(x, y):
        x = torch.einsum("bnd,md->bnm", x, y).softmax(-1) @ y
        return (x.sort(1)[0] + x.logcumsumexp(1)).transpose(0, 1), x

    torch.manual_seed(0)
    found = []
    for f in (compiled(function, backend="inductor"), function):
        torch.manual_seed(0)
        x, y = (torch.randn(size, requires_grad=True) for size in ((4, 6, 4), (6, 4)))
        result = f(x, y)[0]
        tangent = torch.linspace(-1, 1, result.numel()).view(result.shape).requires_grad_()
        found.append(torch.autograd.grad(result, (x, y), tangent, create_graph=True))
    torch.testing.assert_close(*found)
