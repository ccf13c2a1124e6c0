"""Views backwards: a write through each view reaches the base, as in eager."""

import pytest
import torch

import foregrad as fg
from foregrad.functionalize.invert_views import INVERSES, out_of_place
from tests.compare import assert_same

aten = torch.ops.aten


def real():
    return torch.randn(2, 1, 3)


def complex_():
    return torch.randn(2, 3, dtype=torch.complex64)


#: How to call each view op: on what, and with which arguments.
VIEWS = {
    aten.detach.default: (real, ()),
    aten.alias.default: (real, ()),
    aten.view.default: (real, ([3, 2],)),
    aten._reshape_alias.default: (real, ([3, 2], [2, 1])),
    aten.squeeze.default: (real, ()),
    aten.squeeze.dim: (real, (1,)),
    aten.squeeze.dims: (real, ([1],)),
    aten.unsqueeze.default: (real, (-1,)),
    aten.t.default: (lambda: torch.randn(2, 3), ()),
    aten.transpose.int: (real, (0, -1)),
    aten.permute.default: (real, ([2, 0, -2],)),
    aten.select.int: (real, (-1, 1)),
    aten.slice.Tensor: (real, (2, 0, 3, 2)),
    aten.diagonal.default: (real, (1, 0, 2)),
    aten.unbind.int: (real, (2,)),
    aten.split.Tensor: (real, (2, -1)),
    aten.split_with_sizes.default: (real, ([2, 1], 2)),
    aten.view.dtype: (real, (torch.int32,)),
    aten.view_as_real.default: (complex_, ()),
    aten.view_as_complex.default: (lambda: torch.randn(3, 2), ()),
    aten._conj.default: (complex_, ()),
    aten._neg_view.default: (real, ()),
}
EVERY_VIEW = pytest.mark.parametrize("op", VIEWS, ids=str)


def writing_through(op):
    def f(x):
        base = x.clone()
        view = op(base, *VIEWS[op][1])
        view = view[1] if isinstance(view, (list, tuple)) else view
        view.add_(1)
        return base, base * 2

    return f


def test_every_invertible_view_is_tried():
    assert set(VIEWS) | {aten.lift_fresh.default} == set(INVERSES)


def test_a_tensor_made_of_numbers_may_be_written():
    """`lift_fresh` is what `torch.tensor` ends with."""

    def f(x):
        numbers = torch.tensor([1.0, 2.0])
        numbers.add_(x)
        return numbers, numbers * 2

    assert_same(f, lambda: (torch.randn(2).requires_grad_(),), calls=2)


def test_writes_to_all_parts_of_a_split_leave_no_trace_of_the_base():
    """The gates of an LSTM cell: each part is written by itself, and only the parts are read."""

    def f(x):
        gates = x * 2
        a, b, c = gates.chunk(3, 1)
        a.sigmoid_()
        b.tanh_()
        return a * b + c.sigmoid_()

    assert_same(f, lambda: (torch.randn(2, 6).requires_grad_(),), calls=2)
    forward = fg.capture(f, torch.randn(2, 6)).forward
    assert not [n for n in forward.graph.nodes if "scatter" in n.name]


def test_parts_of_a_split_are_read_anew_after_a_write_to_the_whole():
    def f(x):
        base = x.clone()
        a, b = base.split(1)
        a.add_(1)
        base.mul_(3)
        b.add_(a)
        return base, a * 1, b * 1

    assert_same(f, lambda: (torch.randn(2, 3).requires_grad_(),), calls=2)


@EVERY_VIEW
def test_a_write_through_a_view_reaches_its_base(op):
    assert_same(writing_through(op), lambda: (VIEWS[op][0](),), calls=2)


@EVERY_VIEW
def test_a_write_through_a_view_of_an_input_reaches_the_input(op):
    def f(x):
        view = op(x, *VIEWS[op][1])
        view = view[1] if isinstance(view, (list, tuple)) else view
        view.mul_(3)
        return x * 2

    assert_same(f, lambda: (VIEWS[op][0](),), calls=2)


@pytest.mark.parametrize("op", [op for op in VIEWS if op is not aten.view.dtype], ids=str)
def test_a_gradient_passes_through_the_write(op):
    """A view of another dtype has none."""
    assert_same(writing_through(op), lambda: (VIEWS[op][0]().requires_grad_(),))


@EVERY_VIEW
def test_the_write_is_put_back_by_the_inverse_view(op):
    """Not by the general way over the whole storage."""
    program = fg.capture(writing_through(op), VIEWS[op][0]())
    assert "as_strided" not in str(program)


def test_a_chain_of_views_is_undone_one_by_one():
    def f(x):
        base = x * 1
        base.t()[1:].permute(1, 0)[2].mul_(3)
        return base

    assert_same(f, lambda: (torch.randn(3, 4).requires_grad_(),), calls=2)
    assert "as_strided" not in str(fg.capture(f, torch.randn(3, 4)))


def test_any_other_view_goes_over_the_whole_storage():
    def f(x):
        base = x * 1
        base.as_strided((2, 2), (1, 4), 1).mul_(3)
        return base

    assert_same(f, lambda: (torch.randn(3, 4).requires_grad_(),), calls=2)
    assert "as_strided_scatter" in str(fg.capture(f, torch.randn(3, 4)))


def test_a_change_of_geometry_in_place_is_undone_as_its_view():
    assert out_of_place(aten.t_.default) is aten.t.default
    assert out_of_place(aten.squeeze_.dim) is aten.squeeze.dim
    assert out_of_place(aten.resize_.default) is None
    assert out_of_place(aten.mul.Tensor) is None


def test_a_differentiable_write_beside_one_through_data_keeps_its_history():
    def f(a, d):
        a.data.mul_(2.0)
        v = d.view(1, 6)[:, 1].unsqueeze(0)
        v.lerp_(v, 0.3)
        return d * 1

    def inputs():
        leaf = torch.ones(3, 2).requires_grad_()
        return torch.ones(()).requires_grad_(), leaf * 2

    assert_same(f, inputs, calls=2)
