"""Hooks on the gradients of several tensors: when they fire, what they keep, and what they refuse."""

import gc
import threading
import weakref

import pytest
import torch

import foregrad as fg
from tests.graph.leaves import leaf

register = fg.graph.register_multi_grad_hook
torchs = torch.autograd.graph.register_multi_grad_hook


def is_there(gradients):
    return [g is not None for g in gradients]


def test_all_fires_once_with_what_this_backward_computes():
    """GR-6."""
    a, b = leaf(2), leaf(2)
    c, d = a * b, a * b
    calls = []
    handle = register((a, b, c, d), lambda g: calls.append(is_there(g)))
    c.sum().backward(retain_graph=True)
    c.sum().backward(inputs=(a,), retain_graph=True)
    (c + d).sum().backward(retain_graph=True)
    assert calls == [[True, True, True, False], [True, False, True, False], [True] * 4]
    handle.remove()
    c.sum().backward(retain_graph=True)
    assert len(calls) == 3


def test_all_fires_as_soon_as_the_last_gradient_is_there():
    a = leaf(2)
    b = a * 2
    order = []
    a.register_hook(lambda g: order.append("a"))
    register((b * 1, b), lambda g: order.append("all"))
    c = b * 3
    register((c, b), lambda g: order.append("c and b"))
    c.sum().backward()
    assert order == ["all", "c and b", "a"]


def test_any_fires_once_with_the_first():
    """GR-6."""
    a, b = leaf(2), leaf(2)
    calls = []
    register((a, b, torch.ones(1)), calls.append, mode="any")
    y = (a * 2 + b * 3).sum()
    y.backward(retain_graph=True)
    y.backward(inputs=[b])
    assert [g.tolist() for g in calls] in ([[2, 2], [3, 3]], [[3, 3], [3, 3]])


def test_autograd_grad_of_leaves_fires():
    """Torch raises: it does not know whether the gradient of a leaf will come."""
    a, b = leaf(2), leaf(2)
    calls = []
    register((a, b), lambda g: calls.append(is_there(g)))
    torch.autograd.grad((a * b).sum(), (a, b))
    torch.autograd.grad((a * b).sum(), a)
    assert calls == [[True, True], [True, False]]
    torchs((a, b), lambda g: None)
    with pytest.raises(RuntimeError, match="not supported"):
        torch.autograd.grad((a * b).sum(), a)


def test_an_output_of_several_without_a_gradient_comes_as_none():
    x = leaf(3, 2)
    a, b, _ = (x * 1).unbind()
    calls = []
    register((a, b), lambda g: calls.append(is_there(g)))
    register((b, a), lambda g: calls.append(g.tolist()), mode="any")
    a.sum().backward()
    assert sorted(calls, key=str) == [[1, 1], [True, False]]


def test_any_keeps_nothing_of_a_backward_that_is_over():
    """X8; torch keeps an entry for each."""
    a = leaf(2)
    register((a,), lambda g: None, mode="any")
    torchs((a,), lambda g: None, mode="any")
    for _ in range(9):
        (a * 2).sum().backward()
    ours, theirs = a._backward_hooks.values()
    assert len(ours._watch._states) == 0
    assert 9 in [len(c.cell_contents) for c in theirs.__closure__ if isinstance(c.cell_contents, dict)]


@pytest.mark.parametrize(("hook", "is_kept"), [(register, False), (torchs, True)])
def test_gradients_of_a_backward_that_failed_are_freed(hook, is_kept):
    """X8; torch keeps them."""
    a, b = leaf(2), leaf(2)
    c = a * b
    d = c * 2
    seen = []
    hook((d, a), lambda g: None)
    d.register_hook(lambda g: seen.append(weakref.ref(g)))
    c.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        (d * 3).sum().backward()
    gc.collect()
    assert (seen[0]() is not None) == is_kept


@pytest.mark.parametrize("pick", [lambda x, y, z: (x,), lambda x, y, z: (y, z), lambda x, y, z: (x, y)])
def test_tensors_with_a_hook_are_freed(pick):
    """Torch's hooks own the nodes that own the hooks."""

    def leftover(hook):
        x = leaf(2)
        y = x * 2
        hook(pick(x, y, y * 3), lambda g: None)
        (y * 1).sum().backward()
        return weakref.ref(x)

    ours, theirs = leftover(register), leftover(torchs)
    for _ in range(3):  # each time the first node of a chain goes, and lets go of the next
        gc.collect()
    assert ours() is None
    assert theirs() is not None


def test_backwards_in_several_threads_do_not_mix():
    a, b = leaf(2), leaf(2)
    calls = []
    register((a, b), lambda g: calls.append(is_there(g)))
    barrier = threading.Barrier(2)

    def both():
        for _ in range(50):
            barrier.wait()
            torch.autograd.grad((a * b).sum(), (a, b))

    def one():
        for _ in range(50):
            barrier.wait()
            (a * b).sum().backward(inputs=[a])

    threads = [threading.Thread(target=both), threading.Thread(target=one)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (calls.count([True, True]), calls.count([True, False])) == (50, 50)


def test_tensors_without_a_gradient_are_named():
    """X8; torch raises a bare AssertionError."""
    tensors = (leaf(2), torch.ones(3), torch.ones(4, dtype=torch.long))
    with pytest.raises(RuntimeError, match=r"(?s)these do not:\n  tensors\[1\]  f32\[3\]\n  tensors\[2\]  i64\[4\]"):
        register(tensors, lambda g: None)
    with pytest.raises(AssertionError):
        torchs(tensors, lambda g: None)
    with pytest.raises(RuntimeError, match="any of the gradients"):
        register(tensors[1:], lambda g: None, mode="any")
    with pytest.raises(ValueError, match="'all' or 'any', given 'some'"):
        register(tensors, lambda g: None, mode="some")


def test_an_error_in_the_hook_is_the_error_of_the_backward():
    a = leaf(2)
    register((a,), lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        a.sum().backward()
    ours = next(iter(a._backward_hooks.values()))
    assert len(ours._watch._states) == 0
