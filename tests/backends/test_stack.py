"""Products with one second factor as one product: which are, which are not, and that they are the same."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.passes import stacked_products as stack
from foregrad.passes.stacked_products import stacked

aten = torch.ops.aten


def num(program, *ops):
    return sum(node.target in ops for node in program.graph.graph.nodes)


def num_products(program):
    return num(program, aten.mm.default, aten.addmm.default)


def stacked_alike(program, *inputs):
    """The program after the pass, which does the same on these values."""
    made = stacked(program)
    made.verify()
    with torch.no_grad():
        for one, other in zip(program.graph(*inputs), made.graph(*inputs), strict=True):
            torch.testing.assert_close(one, other)
    return made


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.input = nn.Linear(16, 16, dtype=torch.float64)
        self.state = nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x):
        state = torch.zeros_like(x[0])
        for one in x.unbind():
            state = torch.tanh(self.input(one) + self.state(state))
        return state.sum()


@pytest.mark.parametrize("requires_grad", [False, True])
def test_what_a_recurrent_net_does_with_its_inputs_is_one_product_and_so_is_their_gradient(requires_grad):
    torch.manual_seed(0)
    program = fg.capture(Recurrent(), torch.randn(9, 2, 16, dtype=torch.float64, requires_grad=requires_grad))
    inputs = [torch.randn(i.spec.shape, dtype=torch.float64) for i in program.signature.inputs]
    made = stacked_alike(program, *inputs)
    assert num(program, aten.addmm.default) == 18
    assert num(made, aten.addmm.default) == 1 + 9
    assert num(program, aten.mm.default) - num(made, aten.mm.default) == (8 if requires_grad else 0)
    assert num(made, aten.cat.default) == (1 if requires_grad else 0)  # the inputs lie one after another as they are


def test_products_are_one_where_all_that_they_read_is_there_before_the_first_is_needed():
    x, y, w = torch.randn(2, 16), torch.randn(2, 16), torch.randn(16, 16)

    def apart(x, y, w):
        one, later = x @ w.t(), y.relu()
        return one.tanh() + (later @ w.t()).sigmoid()

    def in_turn(x, y, w):
        return ((x @ w).tanh() + y) @ w

    program = fg.capture(apart, x, y, w)
    assert num_products(stacked_alike(program, x, y, w)) == 1
    program = fg.capture(in_turn, x, y, w)
    assert stacked(program) is program


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w, x.relu() @ w),  # results are not rows of one tensor
        lambda x, w: ((x @ w)[:1], (x.relu() @ w).sum()),
        lambda x, w: (x @ w).tanh() + (x.relu() @ w.t()).tanh(),
        lambda x, w: (x @ w).tanh() + (x[:1].relu() @ w).tanh(),
        lambda x, w: (x @ w).tanh() + torch.addmm(x, x, w, alpha=2).tanh() + torch.addmm(x, x, w).tanh(),
        lambda x, w: (w.relu() @ w).tanh() + (w.tanh() @ w).tanh(),  # as many rows as the second factor has
    ],
)
def test_products_that_someone_sees_that_differ_or_that_are_long_are_left(function):
    program = fg.capture(function, torch.randn(2, 16), torch.randn(16, 16))
    assert stacked(program) is program


def test_a_product_that_backward_reads_is_left_where_backward_is_a_part_of_its_own():
    x, w = torch.randn(2, 16), torch.randn(16, 16, requires_grad=True)
    program = fg.capture(lambda x, w: (x @ w).sin() + (x.relu() @ w).sin(), x, w)
    assert stacked(program) is program


def test_a_product_takes_no_more_memory_than_there_may_be(monkeypatch):
    monkeypatch.setattr(stack, "_MOST_BYTES", 2 * 2 * (2 * 16 * 4))
    x, w = torch.randn(5, 2, 16), torch.randn(16, 16)
    program = fg.capture(lambda x, w: sum((one.relu() @ w).tanh() for one in x.unbind()), x, w)
    moved = fg.capture(lambda x, w: sum((one @ w).tanh() for one in x.unbind()), x, w)
    assert stacked(program) is program  # each is needed before the next one can be computed
    assert num_products(stacked_alike(moved, x, w)) == 3


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_a_recurrent_net_trains_as_in_eager():
    torch.manual_seed(0)
    model, x = Recurrent(), torch.randn(9, 2, 16, dtype=torch.float64, requires_grad=True)
    theirs, ours = copy.deepcopy(model), fg.compile(model, backend="inductor", cache=False, progress=False)
    ours(x).backward()
    mine, x.grad = x.grad, None
    theirs(x).backward()
    torch.testing.assert_close(mine, x.grad)
    for one, other in zip(model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)
