"""What eager runs and torch 2.13's own ahead-of-time layer gets wrong (W3 to W8) or refuses (X1 to X6)."""

import concurrent.futures
import threading

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import assert_same, compiled, grads_of, leaf, only_with_eager, refused, same_as_eager


def non_leaf(*shape):
    return leaf(*shape).clone()


def bump(p, q):
    p.mul_(2)
    return p + q


# Silent wrong results


def test_W3_a_view_made_under_no_grad_gets_no_history():
    def f(x):
        with torch.no_grad():
            view = x.view(-1)
        return view, x * 2

    assert_same(f, lambda: (leaf(2),))


def test_W4_a_returned_written_input_does_not_displace_another_written_input():
    def f(x, y, w):
        y.mul_(w)
        x.mul_(2)
        return x, x * w

    assert_same(f, lambda: (torch.randn(3), non_leaf(3), leaf(3)), calls=2)


def assign_data(x):
    x.data = torch.zeros(3)


def require_grad(x):
    x.requires_grad_()


def set_after_a_write(x):
    x.add_(1)
    x.set_(torch.zeros(3))


@pytest.mark.parametrize("change", [assign_data, require_grad, set_after_a_write])
@same_as_eager
def test_W5_no_change_of_an_input_is_lost(wrap, change):
    def f(x):
        change(x)
        return x * 2

    x = torch.ones(3)
    alias = x.detach()
    out = wrap(f)(x)
    return out, x, alias, x.grad


@same_as_eager
def test_W5_an_assigned_grad_is_not_lost(wrap):
    def f(x):
        x.grad = torch.ones(3)
        return x * 2

    x = torch.ones(3)
    return wrap(f)(x), x.grad


class CountsBoth(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        buffer.mul_(2)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(1)
        return g * ctx.buffer, None


@same_as_eager
def test_W6_two_forwards_then_two_backwards_with_a_buffer_written_in_both(wrap):
    f = wrap(lambda x, b: CountsBoth.apply(x, b))
    x, b, seen = leaf(2), torch.ones(1), []
    outs = [f(x, b), f(x, b)]
    for out in outs:
        seen.append(b.clone())
        out.sum().backward()
    return seen, b, grads_of(x)


@same_as_eager
def test_W6_a_change_between_forward_and_backward_is_kept(wrap):
    x, b = leaf(2), torch.ones(1)
    out = wrap(lambda x, b: CountsBoth.apply(x, b))(x, b)
    b.fill_(50)
    out.sum().backward()
    return b, grads_of(x)


GUARDED = {
    "shape": [lambda: (leaf(4),), lambda: (leaf(6),)],
    "requires_grad": [lambda: (torch.randn(4),), lambda: (leaf(4),)],
    "dtype": [lambda: (leaf(4),), lambda: (leaf(4, dtype=torch.float64),)],
    "scalar": [lambda: (leaf(4), 2), lambda: (leaf(4), 3)],
    "structure": [lambda: (leaf(4), [1]), lambda: (leaf(4), {"k": 1}), lambda: (leaf(4),)],
}


@pytest.mark.parametrize("makers", GUARDED.values(), ids=GUARDED)
def test_W7_nothing_of_the_first_call_is_baked_in(makers):
    def f(x, *rest):
        return x.sum() * x.shape[0] * (rest[0] if rest and isinstance(rest[0], int) else len(rest))

    assert_same(f, makers, calls=2)


@pytest.mark.parametrize(
    "optimizer", [torch.optim.AdamW, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1)]
)
@same_as_eager
def test_W8_parameters_that_no_gradient_reaches_do_not_move(wrap, optimizer):
    a, b = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = optimizer([a, b])
    wrap(lambda a, b: (a * 2, b * 3))(a, b)[0].sum().backward()
    opt.step()
    return a, b, grads_of(b)


@pytest.mark.parametrize("split", [lambda x: x.unbind(0), lambda x: x.split(1)])
@same_as_eager
def test_W8_in_place_on_parts_is_refused(wrap, split):
    split_outside = wrap(lambda x: split(x * 2))
    split_outside(leaf(2, 3))[0].mul_(2)


# Crashes and refusals


@pytest.mark.parametrize(
    "views", [lambda c: (c.view(4), c.view(4)), lambda c: (c, c.view(2, 2)), lambda c: (c[:3], c[1:])]
)
def test_X1_two_aliased_inputs_both_written(views):
    def both(p, q):
        p.mul_(2)
        q.mul_(5)
        return p.sum() + q.sum()

    assert_same(both, lambda: views(non_leaf(4)), calls=2)
    assert_same(both, lambda: views(torch.randn(4)), calls=2)


def test_X2_a_written_duplicate_beside_differentiable_outputs():
    def f(x, y, w):
        x.mul_(2)
        return x * w, y * w * 2, x * w * 3

    def inputs():
        t = torch.randn(3)
        return t, t, leaf(3)

    assert_same(f, inputs, calls=2)


def test_X3_one_alias_changes_geometry_and_another_data():
    def f(a, b):
        a.t_()
        b.mul_(2)
        return a * b.sum()

    def inputs():
        base = non_leaf(2, 3)
        return base.view(2, 3), base.view(6)

    assert_same(f, inputs)


def test_X4_written_duplicates_and_their_guard():
    def same():
        x = non_leaf(2)
        return x, x

    assert_same(bump, [same, lambda: (non_leaf(2), non_leaf(2)), same], calls=2)


class ChangesGeometryInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.t_()
        return g, None


@same_as_eager
def test_X5_views_of_different_dtypes_one_written(wrap):
    def f(p, q):
        p.zero_()
        return q + 1

    x = torch.randn(4)
    return wrap(f)(x[:2], x.view(torch.int32)), x


@same_as_eager
def test_X5_views_of_different_bases_one_written(wrap):
    x = torch.randn(4)
    p, q = x.view(2, 2), x.detach().view(2, 2)
    return wrap(bump)(p, q), x


@same_as_eager
def test_X5_closed_over_tensors(wrap):
    w, total = leaf(2), torch.zeros(())

    def f(x):
        y = x * w
        total.add_(y.detach().sum())
        return y

    g = wrap(f)
    for _ in range(2):
        g(torch.ones(2)).sum().backward()
    return grads_of(w), total


@same_as_eager
def test_X5_backward_inside_the_function(wrap):
    model = nn.Linear(2, 1)

    def f(x):
        loss = model(x).pow(2).sum()
        loss.backward()
        return loss.detach()

    step = wrap(f)
    losses = [step(torch.ones(3, 2)), step(torch.ones(3, 2) * 2)]
    return losses, grads_of(*model.parameters())


@same_as_eager
def test_X5_gradients_accumulate_into_inputs_inside_the_function(wrap):
    def f(x):
        (x * x).sum().backward()
        return x * 2

    x = leaf(2)
    g = wrap(f)
    return g(x), g(x), grads_of(x)


@same_as_eager
def test_X5_a_gradient_read_inside_is_seen(wrap):
    def f(x):
        (x * x).sum().backward()
        return x.grad * 2

    x, g = leaf(2), wrap(f)
    return g(x), g(x), grads_of(x)


@same_as_eager
def test_X5_an_item_that_only_feeds_arguments_of_ops_is_followed_or_refused(wrap):
    f = wrap(lambda x: x * x.sum().item())
    results = []
    for value in (1.0, 2.0):
        x = torch.full((2,), value)
        try:
            results.append(f(x))
        except fg.CaptureError:
            results.append(x * x.sum().item())
    return results


def test_X5_geometry_of_an_input_changes_in_backward_is_refused_when_backward_runs():
    x, b = leaf(2), torch.randn(2, 3)
    out = compiled(lambda x, b: ChangesGeometryInBackward.apply(x, b))(x, b)
    assert torch.equal(out, x * 2)
    with refused(ChangesGeometryInBackward.backward, at="t_()"):
        out.sum().backward()
    assert b.shape == (2, 3)
    assert x.grad is None


@same_as_eager
def test_X5_backward_then_retain_graph_then_backward(wrap):
    f, x = wrap(lambda x: x.sin().sin()), leaf(2)
    f(x).sum().backward()
    out = f(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    return grads_of(x)


@same_as_eager
def test_X5_an_unused_parameter(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return self.a(x)

    model = wrap(Model())
    model(torch.ones(1, 2)).sum().backward()
    return grads_of(*model.parameters())


def test_X6_a_tuple_comes_back_as_a_tuple():
    assert type(compiled(lambda x: (x * 1, x * 2))(torch.ones(2))) is tuple


@only_with_eager("bitwise")
def test_X6_programs_captured_at_the_same_time_in_several_threads():
    start = threading.Barrier(8)

    def work(number):
        f = compiled(lambda x: (x * number).sin())
        x = torch.full((number,), 0.5, requires_grad=True)
        start.wait()
        for _ in range(3):
            f(x).sum().backward()
        return x.grad

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        grads = list(pool.map(work, range(1, 9)))
    for number, grad in enumerate(grads, start=1):
        x = torch.full((number,), 0.5, requires_grad=True)
        for _ in range(3):
            (x * number).sin().sum().backward()
        assert torch.equal(grad, x.grad)
