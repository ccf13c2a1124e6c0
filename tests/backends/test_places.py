"""Reads and writes by places in memory, as views: the same elements, and loops where autograd goes by places."""

import itertools
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import foregrad as fg
from foregrad.backends import choose
from foregrad.passes.strided_access import by_views

needs_compiler = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")
aten = torch.ops.aten


@st.composite
def places(draw):
    """A shape, an order of its dimensions in memory, and a view of it by slices, selections and transposes."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    order = draw(st.permutations(range(len(shape))))
    value = torch.empty([shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    view = value
    for dim in reversed(range(len(shape))):
        kind = draw(st.sampled_from(["all", "slice", "select"]))
        if kind == "select":
            view = view.select(dim, draw(st.integers(0, view.shape[dim] - 1)))
        elif kind == "slice":
            start = draw(st.integers(0, view.shape[dim] - 1))
            view = view[(slice(None),) * dim + (slice(start, None, draw(st.integers(1, 3))),)]
    if draw(st.booleans()) and view.dim() > 1:
        view = view.transpose(0, 1)
    if draw(st.booleans()) and view.dim() == 2:
        view = view.diagonal()
    return value.shape, value.stride(), (view.shape, view.stride(), view.storage_offset())


def by_place(shape, stride, place):
    def f(x, y):
        base = torch.empty_strided(shape, stride).copy_(x)
        before = base.as_strided(*place).clone()
        base.as_strided(*place).copy_(y)
        return before, base, base.as_strided(*place)

    return f


@settings(max_examples=150, deadline=None)
@given(places())
def test_views_show_and_write_the_same_elements(drawn):
    shape, stride, place = drawn
    f, x, y = by_place(shape, stride, place), torch.randn(shape), torch.randn(place[0])
    compiled = fg.compile(f, backend="eager", passes=(by_views,))
    for got, wanted in zip(compiled(x, y), f(x, y), strict=True):
        assert torch.equal(got, wanted)
        assert got.stride() == wanted.stride()


def test_most_places_need_no_op_that_goes_by_places():
    x, y = torch.randn(3, 4, 5), torch.randn(3, 5)
    for index in (slice(None), 2), (slice(1, 3), slice(None), 4), (0, slice(0, 4, 2)):
        view = torch.empty(3, 4, 5)[index]
        f = by_place((3, 4, 5), (20, 5, 1), (view.shape, view.stride(), view.storage_offset()))
        program = by_views(fg.capture(f, x, y[: view.shape[0], : view.shape[1]]))
        assert not any("as_strided" in str(n.target) for n in program.graph.graph.nodes)


def test_memory_that_is_not_a_values_own_is_left_alone():
    """A copy to a part of a tensor lies where the part lay; an input may lie anywhere."""

    def f(x, y):
        part = torch.zeros(4, 6)[1]
        part.copy_(y)
        return torch.as_strided(x, (2, 2), (3, 1), 1), torch.as_strided(part, (2, 3), (3, 1), 6)

    x, y = torch.randn(4, 6), torch.randn(6)
    compiled = fg.compile(f, backend="eager", passes=(by_views,))
    assert all(map(torch.equal, compiled(x, y), f(x, y)))


def test_a_loop_that_writes_its_steps_reads_each_gradient_from_the_tangent():
    """In the order of the loop backwards, autograd reads a slice and fills it with zeros: the next slice is another."""

    def f(x, w):
        out, h = torch.empty(5, 3), torch.zeros(3)
        for i in range(5):
            h = torch.tanh(x[i] + h * w)
            out[i] = h
        return out

    program = by_views(fg.capture(f, torch.randn(5, 3), torch.randn(3, requires_grad=True)))
    ops = [str(n.target) for n in program.backward.graph.nodes]
    assert not any("as_strided" in op or "scatter" in op for op in ops)


LOOPS = {
    "rows": lambda out, i, h: out.__setitem__(i, h),
    "columns": lambda out, i, h: out.__setitem__((slice(None), i), h),
    "slices": lambda out, i, h: out.__setitem__((slice(i, i + 1), 0), h),
    "in place": lambda out, i, h: out[i].add_(h),
    "through a transpose": lambda out, i, h: out.t()[i].copy_(h),
}


@needs_compiler
@pytest.mark.parametrize("kind", LOOPS)
def test_a_loop_that_writes_its_steps_is_compiled(kind):
    write = LOOPS[kind]

    def loop(x, w):
        out, h = torch.zeros(4, 4) if kind != "slices" else torch.zeros(4, 1, 4), torch.zeros(4)
        for i in range(4):
            h = torch.tanh(x[i] + w @ h)
            write(out, i, h)
        return out.square() if kind == "in place" else out

    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    compiled = fg.compile(loop, backend="inductor", cache=False, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = compiled(x, w)
        gradients = torch.autograd.grad(ours.sin().sum(), (x, w))
    torch.testing.assert_close(ours, loop(x, w))
    torch.testing.assert_close(gradients, torch.autograd.grad(loop(x, w).sin().sum(), (x, w)))
    assert not any(region.fallbacks for half in compiled.regions for region in half.distinct)


def test_a_long_loop_takes_time_in_proportion():
    """A chain of 200 writes has 200 reads, each of which sees past the writes before it."""

    def f(x, w):
        out = torch.empty(200, 2)
        for i in range(200):
            out[i] = x[i] * w
        return out

    program = by_views(fg.capture(f, torch.randn(200, 2), torch.randn(2, requires_grad=True)))
    backward = list(itertools.chain(program.backward.graph.nodes))
    assert not any(n.target in (aten.as_strided.default, aten.slice_scatter.default) for n in backward)
