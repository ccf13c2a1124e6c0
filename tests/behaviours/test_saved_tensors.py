"""When a backward is refused because a tensor was written: as eager has it, by what each of its nodes has saved."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.compare import Gradients, also_compiled, assert_same, grads_of, leaf, same_as_eager


def outcome(action):
    """What an action gives, or the type of what it raises: words differ where a node of ours does the check."""
    try:
        return action()
    except RuntimeError as error:
        return type(error).__name__


def gradients(results, *inputs, **options):
    options = {"allow_unused": True, "retain_graph": True} | options
    return outcome(lambda: Gradients(torch.autograd.grad(results, inputs, **options)))


# A tensor's .data, with a counter of its own over the same memory


@same_as_eager
def test_the_data_of_a_result_is_written_by_the_caller(wrap):
    def f(w):
        y = w.sin()
        data = y.data
        return (w * data).sum(), y.view(3, 1), data

    w, told = leaf(3), []
    for write_to in (1, 2):
        results = wrap(f)(w)
        results[write_to].detach().zero_()
        told.append(gradients(results[0], w))
    return told


@same_as_eager
def test_the_data_of_an_input_is_written_by_the_caller(wrap):
    def f(w, x):
        data = x.data
        return (w * data).sum(), data

    w, told = leaf(3), []
    for write_to in ("data", "x"):
        x = torch.ones(3)
        loss, data = wrap(f)(w, x)
        (data if write_to == "data" else x).mul_(5)
        told.append(gradients(loss, w))
    return told


@same_as_eager
def test_a_written_data_is_saved_as_it_is_in_the_end(wrap):
    def f(w, x):
        data = x.data
        y = w.cos()
        inner = y.data
        data.add_(1)
        inner.add_(1)
        return (w * data * inner).sum(), data, inner, y.view(3, 1)

    w = leaf(3)
    loss, data, inner, _ = wrap(f)(w, torch.ones(3))
    first = gradients(loss, w)
    data.mul_(2)
    return first, gradients(loss, w), data._version, inner._version


@same_as_eager
def test_views_of_an_inputs_data_that_gets_a_history_follow_it(wrap):
    def f(x, w):
        data = x.data
        turned = data.t()
        data.mul_(w)
        return turned.unbind(0)[1], turned.abs()

    w = leaf(2)
    one, other = wrap(f)(torch.ones(3, 2), w)
    return gradients(one.sum() + other.sum(), w)


@also_compiled
@same_as_eager
def test_one_value_read_through_two_counters(wrap):
    def f(w):
        y = w.exp()
        return (w * y.data).sum(), y

    w = leaf(3)
    loss, y = wrap(f)(w)
    y.detach().zero_()
    return gradients(loss, w), gradients(y, w, grad_outputs=torch.ones(3))


# A node that saves more than its formula needs


@same_as_eager
def test_complex_saves_its_parts(wrap):
    w = leaf(3)
    x = w * 2
    z = wrap(lambda x: torch.complex(x, x))(x)
    x.add_(1)
    return gradients(z, w, grad_outputs=torch.ones_like(z))


@same_as_eager
def test_a_custom_function_saves_a_tensor_that_it_does_not_need(wrap):
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.save_for_backward(x, factor)
            return x * factor

        @staticmethod
        def backward(ctx, gradient):
            _, factor = ctx.saved_tensors
            return gradient * factor, None

    def f(w):
        y = w @ w
        return Scaled.apply(y, torch.tensor(2.0)), y.diagonal()

    w = leaf(3, 3)
    scaled, diagonal = wrap(f)(w)
    with torch.no_grad():
        diagonal.add_(1)
    return gradients(scaled.sum(), w)


# Views made under no_grad: they require a gradient, and get none


def view_without_history(x):
    with torch.no_grad():
        return x[1:]


@same_as_eager
def test_a_view_made_under_no_grad_of_a_tensor_written_later(wrap):
    def f(a, w):
        head = view_without_history(a)
        squares = head.square() * w
        a.add_(1)
        return squares, w.sin()

    w = leaf(2)
    squares, sine = wrap(f)(leaf(3) * 1, w)
    return [
        outcome(lambda: squares.sum().backward(retain_graph=True)),
        outcome(lambda: sine.sum().backward(retain_graph=True)),
        gradients(sine.sum(), w),
        grads_of(w),
    ]


@pytest.mark.parametrize("writes", [False, True])
@same_as_eager
def test_a_view_made_under_no_grad_that_a_checkpoint_computes_from_again(wrap, writes):
    def f(x):
        a = x * 2
        head = view_without_history(a)
        tanh = checkpoint(lambda head: nn.functional.dropout(head).tanh().sigmoid(), head, use_reentrant=False)
        if writes:
            a.add_(1)
        return tanh.exp(), a

    torch.manual_seed(0)
    x = leaf(3)
    tanh, a = wrap(f)(x)
    return [outcome(lambda: tanh.sum().backward(retain_graph=True)), gradients(a.sum(), x), grads_of(x), torch.rand(1)]


@same_as_eager
def test_a_view_made_under_no_grad_of_a_tensor_that_the_caller_writes(wrap):
    a = leaf(3) * 1
    squares = wrap(lambda a: view_without_history(a).view(2, 1).square())(a)
    before = outcome(lambda: squares.sum().backward(retain_graph=True))
    a.add_(1)
    return before, outcome(lambda: squares.sum().backward())


@same_as_eager
def test_an_argument_that_is_a_view_made_under_no_grad(wrap):
    def f(head, other):
        powers = head.exp()
        total = powers.square().sum()
        powers.mul_(2)
        return total, (head * head).sum()

    w, other = leaf(3), leaf(2)
    whole = w.sin()
    total, product = wrap(f)(view_without_history(whole), other)
    return [
        gradients(product, w, whole, other),
        gradients(total, w, whole, other),
        outcome(product.backward),
        outcome(total.backward),
        grads_of(w, other),
    ]


@same_as_eager
def test_a_view_made_under_no_grad_beside_its_base(wrap):
    w = leaf(3)
    whole = w.sin()
    loss = wrap(lambda head, whole: (head * whole[1:]).sum())(view_without_history(whole), whole)
    return gradients(loss, w)


@same_as_eager
def test_a_view_made_under_no_grad_then_a_leaf_of_its_own(wrap):
    compute, told = wrap(lambda head: (head * head).sum()), []
    for is_leaf in (False, True):
        head = view_without_history(leaf(3).sin())
        if is_leaf:
            head.requires_grad_()
        compute(head).backward()
        told.append(grads_of(head))
    return told


@same_as_eager
def test_a_backward_that_would_fail_does_not_run_for_an_input_it_does_not_reach(wrap):
    def f(a, unused):
        powers = a.exp()
        total = powers.square().sum()
        powers.mul_(2)
        return total

    a, unused = leaf(3), leaf(2)
    total = wrap(f)(a * 1, unused * 1)
    return gradients(total, unused), gradients(total, a)


# Leaves


@same_as_eager
def test_set_on_a_leaf_that_was_used(wrap):
    def f(w, is_saved):
        y = w / (w + 2) if is_saved else w * 2
        with torch.no_grad():
            w.set_(torch.ones(3))
        return y.sum()

    told = []
    for is_saved in (True, False):
        w = leaf(3)
        told += [outcome(wrap(f)(w, is_saved).backward), grads_of(w)]
        w = leaf(3)
        told.append(gradients(wrap(f)(w, is_saved), w))
    return told


@same_as_eager
def test_a_leaf_that_is_a_view_loses_its_views_when_it_is_written(wrap):
    def f(a):
        before, row = a.view(-1), a[1]
        with torch.no_grad():
            row.mul_(2)
        return (before * before).sum(), (a * a).sum()

    a = torch.ones(4).view(2, 2).requires_grad_()
    lost, kept = wrap(f)(a)
    return gradients(lost, a), gradients(kept, a), a._version


@same_as_eager
def test_a_leaf_that_is_a_view_cannot_be_written_with_gradients_on(wrap):
    a = torch.ones(4).view(2, 2).requires_grad_()
    return outcome(lambda: wrap(lambda a: a[0].mul_(2))(a)), a.detach()


# Second derivatives


@same_as_eager
def test_a_backward_to_be_differentiated_checks_what_it_needs(wrap):
    def f(x, y):
        return x * x, y.sin()

    w = nn.Parameter(torch.ones(3))
    x, y = w * 1, w * 2
    squares, sine = wrap(f)(x, y)
    x.add_(1)
    told = [gradients(sine.sum(), w, create_graph=True)]
    for create_graph in (True, False, True):
        told.append(gradients(squares.sum() + sine.sum(), w, create_graph=create_graph))
    told.append(gradients(sine.sum(), w, create_graph=True))
    return told


# Counters and flags


@same_as_eager
def test_results_of_two_dtypes_share_a_counter(wrap):
    def f(x):
        doubled = torch.cat([x, x]).detach()
        return doubled, doubled.view(torch.int32)

    doubles, bits = wrap(f)(torch.ones(2, dtype=torch.float64))
    doubles.add_(1)
    return doubles, bits


@same_as_eager
def test_a_view_that_becomes_a_leaf_leaves_its_earlier_views_alone(wrap):
    def f(part):
        before = part.view(-1)
        part.requires_grad_()
        return before * 2, part * 3

    part = torch.ones(4)[:2]
    before, after = wrap(f)(part)
    after.sum().backward()
    return before, after, grads_of(part)


CHANGES = {
    "unsqueeze_": lambda x: x.unsqueeze_(1),
    "t_": lambda x: x.t_(),
    "data": lambda x: setattr(x, "data", x.data * 2),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("make", [torch.sin, torch.t, lambda w: w.sin().t()], ids=["new", "view of a leaf", "view"])
@same_as_eager
def test_an_input_is_saved_as_it_was_before_its_geometry_or_data_changes(wrap, make, change):
    def f(x):
        before = torch.nn.functional.linear(x, x)
        change(x)
        return before, x * x.exp()

    w = leaf(2, 3)
    x = make(w)
    before, after = wrap(f)(x)
    return gradients(before.sum(), w), gradients(after.sum(), w), x


def test_a_geometry_change_of_a_look_at_a_result_that_is_saved_for_backward():
    """Backward said that the result was modified: its counter belongs to a tensor that nobody sees."""

    def f(x):
        wide = torch.ones((), dtype=x.dtype).expand(3, 3)
        part = wide[:, :1]
        wide.t_()
        return torch.mm(x, part), part

    assert_same(f, lambda: (leaf(3, 3),))
