"""Changes of the geometry of an input that shares memory with another input, with gradients on."""

import pytest
import torch

import foregrad as fg
from tests.compare import also_compiled, assert_refused, compiled, leaf, same_as_eager


def replace_data(x):
    x.data = x.data * 2


CHANGES = {
    "transpose_": lambda x: x.transpose_(0, 1),
    "squeeze_": lambda x: x.squeeze_(2),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "swapaxes_": lambda x: x.swapaxes_(0, 2),
    "as_strided_": lambda x: x.as_strided_((x.shape[0], 2), (3, 1)),
    "resize_": lambda x: x.detach().resize_(1, 2),
    "detach_": lambda x: x.detach().detach_(),
    "data": replace_data,
}

PAIRS = {
    "whole": lambda base: (base, base.view(2, 3, 1)),
    "part": lambda base: (base, base[1:]),
    "moved": lambda base: (base, base.transpose(0, 1)),
    "two parts": lambda base: (base[:1], base.view(2, 3, 1)),
}

WRITES = {
    "nothing": lambda x, y: None,
    "the first": lambda x, y: x.mul_(2),
    "the second": lambda x, y: y.mul_(2),
}


@pytest.mark.parametrize("written", WRITES)
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("change", CHANGES)
@same_as_eager
def test_a_view_of_another_input_changes_its_geometry(wrap, change, pair, written):
    start = leaf(2, 3, 1)
    x, y = PAIRS[pair](start * 1)

    def f(x, y):
        CHANGES[change](y)
        WRITES[written](x, y)
        return x * 2, (y * y).sum()

    first, second = wrap(f)(x, y)
    (first.sum() + second).backward()
    return first.detach(), second.detach(), x.detach(), y.detach(), y.stride(), start.grad


@also_compiled
@same_as_eager
def test_a_view_changes_its_geometry_at_each_call(wrap):
    w = leaf(2, 3)

    def f(x, y):
        y.t_()
        return x @ y

    g = wrap(f)
    for _ in range(3):
        x = w.sin()
        g(x, x.view(2, 3)).sum().backward()
    return w.grad


@same_as_eager
def test_a_call_whose_inputs_no_longer_share_memory(wrap):
    v, w = leaf(2, 3), leaf(2, 3)

    def f(x, y):
        y.t_()
        return x @ y

    g = wrap(f)
    x, y = w.sin(), v.sin()
    g(x, x.view(2, 3)).sum().backward()
    g(w.cos(), y.view(2, 3)).sum().backward()
    return v.grad, w.grad


def transposes(x, y):
    y.t_()
    return x @ y


def test_a_view_with_a_hook_that_changes_its_geometry_is_refused():
    w = leaf(2, 3).sin()
    y = w.view(2, 3)
    y.register_hook(lambda gradient: gradient * 2)
    assert_refused(transposes, (w, y), at="y.t_()")


def test_a_view_that_keeps_its_gradient_by_a_later_call_is_noticed():
    w = leaf(2, 3).sin()
    f = compiled(transposes)
    f(w, w.view(2, 3))
    y = w.view(2, 3)
    y.retain_grad()
    with pytest.raises(fg.CaptureError, match="keeps its gradient"):
        f(w, y)


@same_as_eager
def test_a_write_to_a_view_of_a_view_that_was_made_without_gradients(wrap):
    base = leaf(4, 4)
    with torch.no_grad():
        a = base.t()
    b = a[1::2]

    def f(a, b):
        with torch.no_grad():
            b.sub_(1)
        return a.detach() * 2

    return wrap(f)(a, b), base.detach()


def set_data(x, y):
    x.data = y.data


SHRINKS = {
    "set_ to a row": lambda x: x.set_(x[1].detach()),
    "set_ to a slice": lambda x: x.set_(x[:, 1:2].detach()),
    "set_ to every second": lambda x: x.set_(x.view(-1)[::2].detach()),
    "set_ to a transpose": lambda x: x.set_(x.t().detach()),
    "data of a row": lambda x: set_data(x, x.data[1]),
    "data of a slice": lambda x: set_data(x, x.data[1:]),
    "as_strided_": lambda x: x.as_strided_((2,), (2,), 1),
    "resize_": lambda x: x.resize_(1, 2),
    "t_": lambda x: x.t_(),
}
AFTER = {"nothing": lambda x: None, "a write": lambda x: x.add_(1), "a write through .data": lambda x: x.data.neg_()}


@pytest.mark.parametrize("rows", [3, pytest.param(1 << 20, id="large")])
@pytest.mark.parametrize("after", AFTER.values(), ids=AFTER)
@pytest.mark.parametrize("shrink", SHRINKS.values(), ids=SHRINKS)
@same_as_eager
def test_what_was_written_before_a_tensor_shows_less_of_its_memory_arrives(wrap, shrink, after, rows):
    """Writes to the rest were lost where the tensor took a part of its own memory by `set_` or `.data =`."""
    x = torch.arange(rows * 2.0).view(rows, 2)
    whole = x.view(-1)  # what the caller still sees of all of it

    def f(x):
        x.mul_(2)
        shrink(x)
        after(x)

    wrap(f)(x)
    return list(x.shape), x.storage_offset(), whole[:8], whole.double().sum()


@pytest.mark.parametrize("is_written", [False, True])
def test_a_backward_reads_memory_that_the_caller_writes_afterwards(is_written):
    """Autograd does not notice writes to the memory of a `.data`: it reads what is there when backward runs."""

    def function(a, c):
        seen = c.data
        seen[..., 1] = 0.5
        return seen @ c.t()

    def gradient(function):
        a = torch.arange(6.0).view(3, 2).t().requires_grad_()
        result = function(a, a.t())
        if is_written:
            with torch.no_grad():
                a.mul_(2)
        result.sum().backward()
        return a.grad

    assert torch.equal(gradient(compiled(function)), gradient(function))


def test_a_view_is_squeezed_before_its_base_is_told_to_require_a_gradient():
    def function(a, b):
        b.squeeze_()
        a.requires_grad_()
        return b.float().clone()

    def run(function):
        a = torch.arange(12.0).view(2, 2, 3)
        b = a[-1:]
        return function(a, b), a.requires_grad, b.requires_grad, b.shape

    found, expected = run(compiled(function)), run(function)
    assert torch.equal(found[0], expected[0])
    assert found[1:] == expected[1:]


def takes_by_set(a, made):
    with torch.no_grad():
        a.set_(made)


def takes_by_data(a, made):
    a.data = made


@pytest.mark.parametrize("take", [takes_by_set, takes_by_data])
def test_a_new_tensor_that_changes_its_geometry_after_another_took_its_memory_is_refused(take):
    def function(a):
        made = a.detach() * 2
        take(a, made)
        made.unsqueeze_(0)
        return made.clone()

    with pytest.raises(fg.CaptureError, match="a tensor changes its geometry after another has taken over its memory"):
        compiled(function)(torch.ones(2, 2, requires_grad=True))
