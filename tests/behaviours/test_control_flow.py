"""Branches and loops for which torch has ops: torch.cond, while_loop, scan, map, flex_attention."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.map import map as map_rows
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import foregrad as fg
from tests.compare import leaf

pytestmark = pytest.mark.filterwarnings("ignore")


def same(function, makers, parameters=()):
    """A function compiled once and in eager, on several inputs: values and gradients, None or not."""
    compiled = fg.compile(function, backend="eager")
    for make in makers:
        torch.manual_seed(0)
        inputs = make()
        (results, gradients), (expected, expected_gradients) = [
            _outcome(called, inputs, parameters) for called in (compiled, function)
        ]
        assert [t.stride() for t in results] == [t.stride() for t in expected]
        assert [t is None for t in gradients] == [t is None for t in expected_gradients]
        pairs = zip((*results, *gradients), (*expected, *expected_gradients), strict=True)
        for one, other in pairs:
            if one is not None:
                torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)  # torch's formulas sum in another order
    return compiled


def _outcome(function, inputs, parameters):
    results = [t for t in torch.utils._pytree.tree_leaves(function(*inputs)) if isinstance(t, torch.Tensor)]
    sources = [t for t in (*inputs, *parameters) if t.requires_grad]
    total = sum(t.sum() for t in results if t.requires_grad)
    if not isinstance(total, torch.Tensor):
        return results, []
    return results, torch.autograd.grad(total, sources, allow_unused=True)


def pair(sign):
    return lambda: (leaf(3).detach().abs().mul(sign).requires_grad_(), leaf(3))


SIGNS = [pair(1), pair(-1), pair(1)]


def test_a_branch():
    same(lambda x, y: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * y, SIGNS)


def test_there_is_a_program_for_each_branch():
    compiled = fg.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend="eager")
    for value in (1.0, -1.0, 2.0, -2.0):
        x = torch.full((3,), value)
        assert torch.equal(compiled(x), torch.sin(x) if value > 0 else torch.cos(x))
    assert len(compiled.captures) == 2


def test_what_only_the_other_branch_reads_has_a_gradient_of_zeros():
    same(lambda x, y: torch.cond(x.sum() > 0, lambda x, y: x.sin(), lambda x, y: y.cos(), (x, y)), SIGNS)


def test_the_other_branch_reads_a_variable():
    same(lambda x, y: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x * y.exp(), (x,)), SIGNS)


def test_what_no_branch_reads_has_no_gradient():
    same(lambda x, y: torch.cond(x.sum() > 0, lambda x, y: x.sin(), lambda x, y: x.cos(), (x, y)), SIGNS)


def test_branches_with_parameters():
    left, right = nn.Linear(3, 2), nn.Linear(3, 2)
    same(
        lambda x, y: torch.cond(x.sum() > 0, lambda x: left(x), lambda x: right(x), (x,)),
        SIGNS,
        [*left.parameters(), *right.parameters()],
    )


def test_a_branch_whose_result_depends_on_nothing():
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda x: x.detach().sin(), lambda x: x.cos() * y, (x,))

    same(function, SIGNS)


def test_branches_give_trees():
    def function(x, y):
        return torch.cond(
            x.sum() > 0, lambda x: {"a": x.sin(), "b": (y * 2,)}, lambda x: {"a": x.cos(), "b": (x + 1,)}, (x,)
        )

    same(function, SIGNS)


def test_a_branch_inside_a_branch():
    def inner(x):
        return torch.cond(x.max() > 1, lambda x: x * 2, lambda x: x * 3, (x,))

    same(lambda x, y: torch.cond(x.sum() > 0, inner, lambda x: x - 1, (x,)), [*SIGNS, lambda: (leaf(3) * 9, leaf(3))])


def test_a_branch_that_draws_numbers_is_not_run_aside():
    dropout = nn.Dropout(0.5)
    compiled = fg.compile(
        lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: dropout(x), (x,)), backend="eager"
    )
    x = torch.ones(8, requires_grad=True)
    torch.manual_seed(0)
    expected = torch.rand(2)
    torch.manual_seed(0)
    compiled(x)
    assert torch.equal(torch.rand(2), expected)


def test_a_branch_without_gradients():
    with torch.no_grad():
        same(lambda x, y: torch.cond(x.sum() > 0, lambda x: x + y, lambda x: x - y, (x,)), SIGNS)


def test_second_derivatives_of_a_branch():
    compiled = fg.compile(lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), backend="eager")
    for value, second in ((1.0, -torch.sin(torch.tensor(1.0))), (-1.0, -torch.cos(torch.tensor(1.0)))):
        x = torch.tensor([value], requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        torch.testing.assert_close(torch.autograd.grad(first.sum(), x)[0], second.reshape(1))


def test_a_loop():
    def function(x, y):
        i, z = while_loop(lambda i, z: i < 3, lambda i, z: (i + 1, z.sin() * y), (torch.tensor(0), x))
        return z, i

    same(function, SIGNS)


def test_a_loop_that_depends_on_the_data():
    def function(x, y):
        return while_loop(lambda z: z.abs().sum() < 10, lambda z: (z * 2 + y.detach(),), (x,))

    same(function, SIGNS)


def test_a_loop_that_does_not_run():
    """Torch gives the gradient of one run (2.13)."""
    compiled = fg.compile(
        lambda x, y: while_loop(lambda z: z.sum() < -100, lambda z: (z * y,), (x,))[0], backend="eager"
    )
    x, y = leaf(3), leaf(3)
    result = compiled(x, y)
    assert torch.equal(result, x)
    assert result is not x
    found = torch.autograd.grad(result.sum(), (x, y))
    assert found[0].tolist() == [1.0, 1.0, 1.0]
    assert found[1].tolist() == [0.0, 0.0, 0.0]


def test_a_scan():
    def function(x, y):
        carry, (rows, others) = scan(
            lambda carry, row: ({"a": carry["a"] * 0.5 + row}, (carry["a"] * row, row + y.sum())), {"a": x[0] * 0}, x
        )
        return carry["a"], rows, others

    same(function, SIGNS)


def test_a_scan_backwards_along_another_dimension():
    def function(x, y):
        return scan(
            lambda carry, row: (carry + row, carry * row), y[:2] * 0, x.view(1, 3).expand(2, 3), dim=1, reverse=True
        )

    same(function, SIGNS)


def test_an_associative_scan():
    same(lambda x, y: associative_scan(torch.mul, x, 0, combine_mode="generic") + y, SIGNS)


def test_a_map():
    same(lambda x, y: map_rows(lambda row, y: {"a": row * y, "b": row.sin()}, x, y), SIGNS)


def test_flex_attention():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    slopes = torch.tensor([0.5, 0.25])
    mask = create_block_mask(lambda batch, head, i, j: i >= j, None, None, 4, 4, device="cpu")

    def attention(query, key, value):
        def score(score, batch, head, i, j):
            return score + slopes[head] * (j - i)

        return flex_attention(query, key, value, score_mod=score), flex_attention(query, key, value, block_mask=mask)

    def make():
        return [torch.randn(2, 2, 4, 8) for _ in range(3)]

    compiled = same(attention, [make, make])
    assert len(compiled.captures) == 1


def test_a_branch_in_a_step():
    def trained(wrap):
        torch.manual_seed(0)
        left, right = nn.Linear(3, 1), nn.Linear(3, 1)
        optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=0.1, weight_decay=0.5)

        def step(x):
            optimizer.zero_grad()
            loss = torch.cond(x.sum() > 0, lambda x: left(x), lambda x: right(x), (x,)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(left, right, optimizer)(step)
        losses = [step(torch.full((2, 3), value)) for value in (1.0, -1.0, 1.0, 1.0, -1.0)]
        return [*losses, left.weight, right.weight]

    expected = trained(lambda *state: lambda step: step)
    found = trained(lambda *state: fg.step(*state, backend="eager"))
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one)


def test_without_data_a_branch_is_refused_with_its_line():
    def function(x):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    with pytest.raises(fg.CaptureError, match="in function"):
        fg.capture(function, torch.ones(3))
