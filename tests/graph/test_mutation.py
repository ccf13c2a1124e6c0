"""Saved tensors may be written to: gradients are those of the values that were saved. Bitwise."""

import threading

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.graph.mutation import _watched
from tests.graph.leaves import leaf

TORCHS = torch.autograd.graph.allow_mutation_on_saved_tensors
OURS = fg.graph.allow_mutation_on_saved_tensors


def written_after(allow, use, write):
    """The gradient of `use(y)` if `y` is written to before backward, and how many tensors were copied for it."""
    with allow() as context:
        x = leaf(4)
        y = x.clone()
        s = use(y).sum()
        write(y)
        s.backward()
    return x.grad.tolist(), getattr(context, "copies", None)


def test_a_saved_tensor_is_copied_before_it_is_written_to():
    """GR-7."""
    assert written_after(OURS, lambda y: y**2, lambda y: y.mul_(10)) == ([2, 4, 6, 8], 1)
    assert written_after(TORCHS, lambda y: y**2, lambda y: y.mul_(10))[0] == [2, 4, 6, 8]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        eager()


def eager():
    x = leaf(4)
    y = x.clone()
    s = (y**2).sum()
    y.mul_(10)
    s.backward()


def test_a_view_at_another_offset_is_copied_too():
    """W12; torch takes the gradient at the new values, and says nothing."""
    for use, write, right, torchs in (
        (lambda y: y[1:] ** 2, lambda y: y.mul_(10), [0, 4, 6, 8], [0, 40, 60, 80]),
        (lambda y: y**2, lambda y: y[2:].mul_(10), [2, 4, 6, 8], [2, 4, 60, 80]),
        (lambda y: y[1:3] ** 2, lambda y: y[2:].mul_(10), [0, 4, 6, 0], [0, 4, 60, 0]),
    ):
        assert written_after(OURS, use, write) == (right, 1)
        assert written_after(TORCHS, use, write)[0] == torchs


def test_a_tensor_that_two_nodes_saved_is_copied_once():
    assert written_after(OURS, lambda y: y**2 + y.sin() * y, lambda y: y.zero_())[1] == 1
    assert written_after(OURS, lambda y: y**2, lambda y: (y.zero_(), y.add_(1), y.mul_(3))) == ([2, 4, 6, 8], 1)


def test_writes_of_every_kind_are_seen():
    for write in (
        lambda y: y.copy_(torch.zeros(4)),
        lambda y: y.data.zero_(),
        lambda y: torch._foreach_mul_([y.detach()], 3),
        lambda y: torch.mul(y.detach(), 2, out=y.detach()),
        lambda y: y.detach().view(2, 2)[0].fill_(7),
        lambda y: y.detach().t_().random_(),
        lambda y: torch.sort(y.detach(), descending=True, out=(y.detach(), torch.empty(4, dtype=torch.long))),
        lambda y: y.detach().__setitem__(slice(0, 2), 0),
    ):
        assert written_after(OURS, lambda y: y**2, write) == ([2, 4, 6, 8], 1)


def test_an_op_with_several_results_may_write_them():
    """W12; torch has no room for more than one, and raises KeyError."""

    def sort_into(allow):
        with allow():
            y = leaf(4).clone()
            s = (y**2).sum()
            torch.sort(torch.ones(4), out=(y.detach(), torch.empty(4, dtype=torch.long)))
            s.backward()

    sort_into(OURS)
    with pytest.raises(KeyError):
        sort_into(TORCHS)


def test_sparse_tensors_may_be_saved_and_written_to():
    """W12; torch asks for the address of a sparse tensor, which has none."""

    def product(allow, write):
        with allow():
            a = torch.eye(3).mul(2).to_sparse()
            b = torch.ones(3, 1, requires_grad=True)
            y = torch.sparse.mm(a, b)
            write(a)
            y.sum().backward()
        return b.grad.flatten().tolist()

    for write in (lambda a: a.mul_(5), lambda a: a.zero_(), lambda a: a._values().zero_(), lambda a: None):
        assert product(OURS, write) == [2, 2, 2]
    with pytest.raises(RuntimeError):
        product(TORCHS, lambda a: None)


def test_contexts_may_be_nested():
    """W12; torch raises, and takes the outer context down with it."""

    def nested(allow):
        with allow():
            x = leaf(3)
            y = x.clone()
            s = (y**2).sum()
            try:
                with allow():
                    t = (y**3).sum()
                    y.mul_(10)
            except RuntimeError:
                t = 0
            y.zero_()
            (s + t).backward()
        return x.grad

    assert torch.equal(nested(OURS), 2 * leaf(3) + 3 * leaf(3) ** 2)
    with pytest.raises(AssertionError):
        nested(TORCHS)


def test_backward_may_run_after_the_context():
    with OURS():
        x = leaf(3)
        y = x.clone()
        s = (y**2).sum()
        y.mul_(10)
    s.backward()
    assert x.grad.tolist() == [2, 4, 6]


def test_a_write_after_the_context_is_refused():
    with OURS():
        y = leaf(3).clone()
        s = (y**2).sum()
    y.mul_(10)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.backward()


def test_a_write_inside_does_not_hide_one_outside():
    with OURS():
        y = leaf(3).clone()
        s = (y**2).sum()
    y.mul_(10)
    with OURS():
        y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        s.backward()


def test_a_write_beside_what_is_saved_is_not_refused():
    with OURS():
        x = leaf(4)
        y = x.clone()
        s = (y[:2] ** 2).sum()
        y[2:].zero_()
    s.backward()
    assert x.grad.tolist() == [2, 4, 0, 0]


def test_running_statistics_count_as_written():
    """No schema says so: a batch norm in training writes what one in evaluation has saved."""

    def is_right(allow):
        norm = nn.BatchNorm1d(3)
        with allow():
            norm.eval()
            x = torch.randn(5, 3, requires_grad=True)
            (expected,) = torch.autograd.grad(norm(x).square().sum(), x)
            y = norm(x).square().sum()
            norm.train()
            norm(torch.randn(5, 3) * 100)
            (found,) = torch.autograd.grad(y, x)
        return torch.equal(found, expected)

    assert is_right(OURS)
    assert not is_right(TORCHS)


@pytest.mark.parametrize("inplace", [False, True])
def test_an_op_that_fills_what_it_saved_keeps_the_new_contents(inplace):
    """`rrelu` in training saves its noise, then draws it."""
    x = -leaf(6).detach()
    x.requires_grad_()
    with OURS():
        y = nn.functional.rrelu(x.clone(), training=True, inplace=inplace)
        (found,) = torch.autograd.grad(y.sum(), x)
    assert torch.allclose(found, (y / x).detach())


def test_another_thread_may_write():
    x = leaf(3)
    y = x.clone()
    with OURS():
        s = (y**2).sum()

    def write():
        with OURS(), torch.no_grad():
            y.zero_()

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    s.backward()
    assert x.grad.tolist() == [2, 4, 6]


def test_nothing_is_watched_once_graphs_are_gone():
    with OURS():
        for _ in range(3):
            y = leaf(3).clone()
            z = (y**2).sum()
            y.mul_(2)
            z = z + y.exp().sum()
        del y, z
    assert _watched._by_storage == {}


def test_second_derivatives_and_retained_graphs():
    with OURS():
        x = leaf(3)
        y = x.clone()
        (g,) = torch.autograd.grad((y**3).sum(), x, create_graph=True)
        y.zero_()
        s = g.square().sum()
        s.backward(retain_graph=True)
        s.backward()
    assert torch.equal(x.grad, 2 * 36 * leaf(3).detach() ** 3)
