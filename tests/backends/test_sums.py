"""Sums of matrix products as one product: which are, which are not, and that they are the same."""

import torch
from torch import nn

import foregrad as fg
from foregrad.passes.sums_of_products import one_product

aten = torch.ops.aten


def num(program, op):
    return sum(node.target is op for node in program.graph.graph.nodes)


def runs_alike(program, *inputs):
    """The program before and after the pass, on the same values."""
    with torch.no_grad():
        before, after = (one.graph(*inputs) for one in (program, one_product(program)))
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other)


def captured(function, *inputs):
    return fg.capture(function, *inputs)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x):
        hidden = torch.zeros_like(x[0])
        for one in x.unbind():
            hidden = torch.tanh(self.cell(hidden) + one)
        return hidden.sum()


def test_the_gradient_of_a_weight_that_is_used_many_times_is_one_product():
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(9, 2, 16, dtype=torch.float64)
    program = captured(model, x)
    merged = one_product(program)
    assert num(program, aten.mm.default) == 8 + 9  # to the state before, and to the weight
    assert num(merged, aten.mm.default) == 8 + 1
    assert num(merged, aten.cat.default) == 2
    shapes = [i.spec.shape for i in program.signature.inputs]
    runs_alike(program, *(torch.randn(shape, dtype=torch.float64) for shape in shapes))
    merged.verify()


def test_what_else_is_added_stays():
    a, b, c = torch.randn(8, 2), torch.randn(2, 8), torch.randn(8, 8)
    program = captured(lambda a, b, c: (a @ b + c) + (a.relu() @ b + c.relu()), a, b, c)
    merged = one_product(program)
    assert num(merged, aten.mm.default) == 1
    assert num(merged, aten.add.Tensor) == 2
    runs_alike(program, a, b, c)


def test_products_that_someone_else_sees_or_that_are_long_are_left():
    a, b, long = torch.randn(8, 2), torch.randn(2, 8), torch.randn(8, 32)

    def seen(a, b):
        one, two = a @ b, a.relu() @ b
        return one + two, one

    def twice(a, b):
        one = a @ b
        return one + one

    for function, inputs in (
        (seen, (a, b)),
        (twice, (a, b)),
        (lambda x: x @ x.t() + x.relu() @ x.t(), (long,)),
        (lambda a, b: torch.add(a @ b, a.relu() @ b, alpha=2), (a, b)),
        (lambda a, b: (a @ b)[:1] + a.relu() @ b, (a, b)),
    ):
        program = captured(function, *inputs)
        assert one_product(program) is program


def test_a_sum_that_someone_sees_on_the_way_is_one_of_its_own():
    a, b = torch.randn(8, 2), torch.randn(2, 8)

    def function(a, b):
        half = a @ b + a.relu() @ b
        return half, half + a.sigmoid() @ b + a.tanh() @ b

    program = captured(function, a, b)
    assert num(program, aten.mm.default) == 4
    assert num(one_product(program), aten.mm.default) == 2
    runs_alike(program, a, b)
