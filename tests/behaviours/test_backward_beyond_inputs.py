"""Gradients inside the function that reach inputs which have a history: they go on outside."""

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import BACKEND, also_compiled, assert_refused, compiled, grads_of, leaf, same_as_eager

# -- backward() goes on behind an input ---------------------------------------------------------------------


def squares(x):
    loss = x.square().sum()
    loss.backward()
    return loss.detach()


@also_compiled
@same_as_eager
def test_backward_goes_on_behind_an_input(wrap):
    w = leaf(3)
    f = wrap(squares)
    return f(w.sin()), w.grad.clone(), f(w.cos()), grads_of(w)


@same_as_eager
def test_backward_goes_on_through_a_network_outside(wrap):
    network, head = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)), nn.Linear(4, 2)

    def f(features, goal):
        loss = (head(features) - goal).square().mean()
        loss.backward()
        return loss.detach()

    g = wrap(f)
    seen = [g(network(torch.randn(5, 3)), torch.randn(5, 2)) for _ in range(3)]
    return seen, grads_of(*network.parameters(), *head.parameters())


@same_as_eager
def test_backward_goes_on_behind_inputs_that_share_a_history(wrap):
    w = leaf(3)
    y = w.sin()
    x = y * w
    wrap(lambda x, y: (x * y).sum().backward())(x, y)
    return grads_of(w)


@same_as_eager
def test_an_input_from_outside_that_backward_reaches(wrap):
    w = leaf(3)
    x = w.sin()
    wrap(lambda y: (x * y).sum().backward())(torch.randn(3))
    return grads_of(w)


@same_as_eager
def test_backward_reaches_an_input_that_keeps_its_grad_and_has_a_hook(wrap):
    w = leaf(3)
    x, seen = w.sin(), []
    x.retain_grad()
    x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 3)
    wrap(squares)(x)
    return seen, grads_of(w, x)


@same_as_eager
def test_hooks_behind_an_input_run_once(wrap):
    w = leaf(3)
    w.register_hook(lambda gradient: gradient * 2)
    y = w.sin()
    y.register_hook(lambda gradient: gradient + 1)
    wrap(squares)(y * 2)
    return grads_of(w)


@same_as_eager
def test_a_backward_inside_frees_the_graph_outside(wrap):
    w = leaf(3)
    x = w.sin()
    wrap(squares)(x)
    x.sum().backward()


@same_as_eager
def test_a_second_backward_inside_finds_the_graph_outside_freed(wrap):
    def f(x):
        squares(x)
        squares(x)

    wrap(f)(leaf(3).sin())


@same_as_eager
def test_two_backwards_inside_with_the_graph_kept(wrap):
    def f(x):
        x.square().sum().backward(retain_graph=True)
        x.exp().sum().backward(retain_graph=True)

    w = leaf(3)
    x = w.sin()
    wrap(f)(x)
    x.sum().backward()
    return grads_of(w)


@same_as_eager
def test_backward_from_the_input_itself(wrap):
    def f(x, gradient):
        x.backward(gradient)
        gradient.add_(1)

    w, gradient = leaf(3), torch.randn(3)
    wrap(f)(w.sin(), gradient)
    return grads_of(w), gradient


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@same_as_eager
def test_backward_that_can_be_differentiated_goes_on_behind_an_input(wrap):
    w = leaf(3)
    wrap(lambda x: x.pow(3).sum().backward(create_graph=True))(w.sin())
    first = w.grad
    w.grad = None
    first.square().sum().backward()
    return first.detach(), grads_of(w)


@same_as_eager
def test_an_input_that_is_written_before_backward(wrap):
    def f(x):
        x.mul_(3)
        x.square().sum().backward()

    w = leaf(3)
    x = w * 2
    wrap(f)(x)
    return grads_of(w), x.detach(), x._version


@same_as_eager
def test_what_the_graph_outside_has_saved_is_written_after_backward(wrap):
    w = leaf(3)
    scale = torch.randn(3)

    def f(x):
        x.square().sum().backward()
        scale.mul_(2).add_(1)

    wrap(f)(w * scale)
    return grads_of(w), scale


@same_as_eager
def test_what_the_graph_outside_has_saved_is_written_before_backward(wrap):
    w = leaf(3)
    scale = torch.randn(3)

    def f(x):
        scale.mul_(2)
        x.square().sum().backward()

    wrap(f)(w * scale)


@also_compiled
def test_a_step_that_goes_on_behind_its_input():
    def run(wrap):
        torch.manual_seed(0)
        network, head = nn.Linear(3, 4), nn.Linear(4, 2)
        optimizer = torch.optim.SGD(head.parameters(), lr=0.1, momentum=0.9)

        def train(features):
            optimizer.zero_grad()
            loss = head(features).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = wrap(head, optimizer)(train)
        losses = [step(network(torch.randn(5, 3))) for _ in range(3)]
        return losses, [*grads_of(*network.parameters())], list(head.parameters())

    expected, found = run(lambda *state: lambda f: f), run(lambda *state: fg.step(*state, backend=BACKEND))
    torch.testing.assert_close(found, expected)


def test_a_grad_behind_an_input_that_the_function_uses_too_is_refused():
    w = leaf(3)

    def f(x):
        x.square().sum().backward()
        return w.grad * 2

    assert_refused(f, (w.sin(),), at="w.grad")


def test_a_grad_behind_an_input_that_the_function_has_used_before_is_refused():
    w = leaf(3)

    def f(x):
        w.grad = None
        x.square().sum().backward()

    assert_refused(f, (w.sin(),), at="backward()")


def test_a_history_that_leads_to_a_grad_in_use_is_noticed_at_a_later_call():
    v, w = leaf(3), leaf(3)

    def f(x):
        x.square().sum().backward()
        return (w * 2).sum() if w.grad is None else w.grad.sum()

    g = compiled(f)
    g(v.sin())
    with pytest.raises(fg.CaptureError, match="used inside"):
        g(w.sin())


def test_a_hook_that_comes_after_backward_has_gone_on_is_refused():
    def f(x):
        squares(x)
        x.register_hook(lambda gradient: gradient * 2)

    assert_refused(f, (leaf(3).sin(),), at="register_hook")


def test_backward_beyond_inputs_that_share_memory_is_refused():
    def f(x, y):
        (x.sum() * y.sum()).backward()

    x = leaf(4).sin()
    assert_refused(f, (x, x[1:]), at="backward()")


# -- gradients with respect to what lies behind an input ----------------------------------------------------


@same_as_eager
def test_backward_to_an_input_that_is_no_leaf(wrap):
    def f(x):
        x.square().sum().backward(inputs=[x], retain_graph=True)
        return x.grad * 2

    w = leaf(3)
    x = w.sin()
    out = wrap(f)(x)
    kept = x.retains_grad
    x.sum().backward()
    return out, kept, grads_of(x, w)


def gradient_of_a_leaf(x, w):
    return torch.autograd.grad((x * x * w).sum(), w)[0]


def test_a_gradient_of_a_leaf_that_lies_behind_another_input_is_refused():
    w = leaf(3)
    assert_refused(gradient_of_a_leaf, (w.sin(), w), at="torch.autograd.grad")


def test_backward_to_a_leaf_that_lies_behind_another_input_is_refused():
    def f(x, w):
        (x * w).sum().backward(inputs=[w])

    w = leaf(3)
    assert_refused(f, (w.sin(), w), at="backward(")


def test_a_gradient_of_an_input_that_lies_behind_another_one_is_refused():
    def f(x, y):
        return torch.autograd.grad((x * y).sum(), y)

    y = leaf(3).sin()
    assert_refused(f, (y.exp(), y), at="torch.autograd.grad")


def test_a_history_that_leads_to_what_is_differentiated_is_noticed_at_a_later_call():
    v, w = leaf(3), leaf(3)
    g = compiled(gradient_of_a_leaf)
    assert torch.equal(g(v.sin(), w), gradient_of_a_leaf(v.sin(), w))
    with pytest.raises(fg.CaptureError, match="lies behind"):
        g(w.sin(), w)


@same_as_eager
def test_a_gradient_of_a_leaf_beside_an_input_with_another_history(wrap):
    v, w = leaf(3), leaf(3)
    f = wrap(gradient_of_a_leaf)
    return f(v.sin(), w), f(v.cos(), w)


@same_as_eager
def test_a_gradient_of_one_result_of_a_node_beside_the_other(wrap):
    one, other = leaf(6).sin().chunk(2)
    return wrap(lambda x, y: torch.autograd.grad((x * y).sum(), y))(one.exp(), other)


def test_a_gradient_with_respect_to_a_view_made_under_no_grad_is_refused():
    """It requires a gradient, as its base does, and has no place in the graph: torch's AssertionError came out."""
    base = leaf(3).clone()
    with torch.no_grad():
        view = base[0]

    def f(x, view):
        return torch.autograd.grad(x.sum(), view, create_graph=True)[0]

    with pytest.raises(RuntimeError, match="appears to not have been used in the graph"):
        f(leaf(3).clone(), view)
    assert_refused(f, (leaf(3).clone(), view), at="torch.autograd.grad")


def test_the_gradient_of_a_slice_that_is_all_of_its_base_may_be_written():
    """It was a view made under no_grad, which autograd does not let be written."""

    def f(part, x):
        gradient = torch.autograd.grad(part.sum(), x, retain_graph=True)[0]
        gradient.mul_(x)
        return gradient * x

    def run(wrap):
        x = torch.tensor([2.0, 3.0], requires_grad=True)
        result = wrap(f)(x[:2], x)
        result.sum().backward()
        return result, x.grad

    for one, other in zip(run(lambda f: f), run(compiled), strict=True):
        assert torch.equal(one, other)
