"""Hooks on inputs and parameters that a gradient inside the function passes."""

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import BACKEND, also_compiled, assert_refused, compiled, grads_of, leaf, same_as_eager


def trains(w):
    def f(x):
        (w * x).square().sum().backward()
        return w.grad * 2

    return f


@also_compiled
@same_as_eager
def test_a_hook_on_a_parameter_changes_what_backward_adds(wrap):
    w = nn.Parameter(torch.randn(3))
    w.register_hook(lambda gradient: gradient * 10)
    w.register_hook(lambda gradient: gradient.clamp(-1, 1) + w.detach())
    f = wrap(trains(w))
    return f(torch.randn(3)), f(torch.randn(3)), grads_of(w)


@same_as_eager
def test_a_hook_that_returns_nothing_leaves_the_gradient(wrap):
    w = leaf(3)
    w.register_hook(lambda gradient: None)
    return wrap(trains(w))(torch.randn(3)), grads_of(w)


@same_as_eager
def test_a_hook_sees_the_sum_of_what_arrives(wrap):
    w = leaf(3)
    w.register_hook(lambda gradient: gradient.square())
    wrap(lambda x: (w * x + w.sin()).sum().backward())(torch.randn(3))
    return grads_of(w)


def doubles_the_grad(p):
    p.grad.mul_(2)


@same_as_eager
def test_hooks_come_and_go_between_calls(wrap):
    w, x, seen = leaf(3), torch.randn(3), []
    f = wrap(trains(w))
    seen.append(f(x).clone())
    handle = w.register_hook(lambda gradient: gradient * 10)
    seen += [f(x).clone(), f(x).clone()]
    handle.remove()
    seen.append(f(x).clone())
    w.register_post_accumulate_grad_hook(doubles_the_grad)
    return [*seen, f(x)], grads_of(w)


@same_as_eager
def test_what_a_hook_reads_is_read_anew(wrap):
    w, x, scale = leaf(3), torch.randn(3), [2.0]
    w.register_hook(lambda gradient: gradient * scale[0])
    f = wrap(trains(w))
    seen = [f(x).clone(), f(x).clone(), f(x).clone()]
    scale[0] = 5.0
    return seen, f(x)


@same_as_eager
def test_a_hook_that_counts(wrap):
    w, x, calls = leaf(3), torch.randn(3), {"n": 0}

    def hook(gradient):
        calls["n"] += 1

    w.register_hook(hook)
    f = wrap(trains(w))
    f(x), f(x), f(x)
    return calls, grads_of(w)


def test_a_hook_that_keeps_the_gradient_is_refused():
    w, kept = leaf(3), []
    w.register_hook(lambda gradient: kept.append(gradient))
    with pytest.raises(fg.CaptureError, match=r"stores a tensor .* in `a hook"):
        compiled(trains(w))(torch.randn(3))
    assert kept == []


def test_a_hook_of_c_is_refused():
    w, kept = leaf(3), []
    w.register_hook(kept.append)
    f = trains(w)
    assert_refused(f, (torch.randn(3),), at="backward()")
    assert kept == []


@also_compiled
@same_as_eager
def test_a_hook_after_accumulation(wrap):
    w = leaf(3)

    def descend(p):
        with torch.no_grad():
            p.sub_(p.grad, alpha=0.1)
        p.grad = None

    w.register_post_accumulate_grad_hook(descend)
    f = wrap(lambda x: (w * x).square().sum().backward())
    f(torch.randn(3)), f(torch.randn(3))
    return w.detach(), w._version, grads_of(w)


@same_as_eager
def test_a_hook_after_accumulation_that_returns_something(wrap):
    w = leaf(3)
    w.register_post_accumulate_grad_hook(lambda p: p.grad)
    wrap(trains(w))(torch.randn(3))


@same_as_eager
def test_a_gradient_taken_inside_passes_the_hooks_of_its_input(wrap):
    w = leaf(3)
    x = w.sin()
    w.register_hook(lambda gradient: gradient * 3)
    x.register_hook(lambda gradient: gradient + 1)

    def f(x, w):
        return torch.autograd.grad((x * x).sum(), x)[0], torch.autograd.grad(w.exp().sum(), w)[0]

    g = wrap(f)
    first = g(x, w)
    x.register_hook(lambda gradient: gradient * 7)
    return first, g(x, w), grads_of(w)


@same_as_eager
def test_hooks_run_once_where_a_gradient_arrives_from_inside_and_another_from_outside(wrap):
    w = leaf(3)
    w.register_hook(lambda gradient: gradient * 3)

    def f(x):
        (w * x).sum().backward()
        return (w.exp() * x).sum()

    wrap(f)(torch.randn(3)).backward()
    return grads_of(w)


@same_as_eager
def test_a_hook_that_the_function_registers_and_removes(wrap):
    w, x = leaf(3), torch.randn(3)

    def f(x):
        handle = w.register_hook(lambda gradient: gradient * 2)
        (w * x).sum().backward()
        handle.remove()
        (w * x).sum().backward()
        return (w * 2).sum()

    wrap(f)(x).backward()
    return grads_of(w), len(w._backward_hooks or ())


def test_a_hook_after_accumulation_that_the_function_registers_is_refused():
    w = leaf(3)

    def f(x):
        w.register_post_accumulate_grad_hook(lambda p: None)
        return w * x

    assert_refused(f, (torch.randn(3),), at="register_post_accumulate_grad_hook")


@also_compiled
def test_a_step_whose_optimizers_step_in_backward():
    def run(wrap):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        optimizers = {p: torch.optim.Adam([p], lr=0.1, foreach=False) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)

        def train(x):
            loss = model(x).square().mean()
            loss.backward()
            return loss.detach()

        step = wrap(model, *optimizers.values())(train)
        return [step(torch.randn(5, 3)) for _ in range(4)], [*model.parameters()], [p.grad for p in model.parameters()]

    expected, found = run(lambda *state: lambda f: f), run(lambda *state: fg.step(*state, backend=BACKEND))
    torch.testing.assert_close(found, expected)
