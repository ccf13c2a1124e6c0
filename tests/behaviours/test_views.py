"""Views and writes in combinations that random programs have found (`tests/fuzz`)."""

import pytest
import torch

from tests.compare import also_compiled, assert_refused, assert_same, grads_of, leaf, same_as_eager


def history(tensor):
    """What autograd tells of a tensor; it may refuse to, in words that depend on the op that made a view."""
    try:
        return tensor.grad_fn is not None, tensor.is_leaf, tensor.requires_grad
    except RuntimeError as error:
        return "modified inplace" in str(error)


# -- geometry -----------------------------------------------------------------------------------------------


@also_compiled
@pytest.mark.parametrize("make", [lambda a: a[-1:], lambda a: a.t()[1:], lambda a: a.view(2, 8)[:, 1:]])
def test_as_strided_of_a_written_view_counts_from_the_start_of_its_memory(make):
    def fn(a, view):
        part = view.unsqueeze(0)
        part.mul_(2)
        return part.as_strided((3,), (2,), 5) * 3, part.as_strided((2, 2), (1, 2), 2)

    def inputs():
        a = leaf(4, 4) * 1
        return a, make(a)

    assert_same(fn, inputs)


def test_as_strided_of_a_written_view_of_another_dtype():
    def fn(a):
        pairs = torch.view_as_complex(a)
        pairs.mul_(2)
        part = pairs[1:].as_strided((3,), (2,), 1)
        part.add_(1)
        return part * 2

    assert_same(fn, lambda: (leaf(4, 2, 2) * 1,))


@pytest.mark.parametrize("size", [0, 1, 5, 10])
@same_as_eager
def test_an_out_argument_is_laid_out_as_the_kernel_resizes_it(wrap, size):
    """A second look at its memory tells layouts apart."""
    a, out = torch.arange(6.0).view(2, 3), torch.zeros(size)
    look = out.view(-1)
    return wrap(lambda a, out: torch.add(a.t(), a.t(), out=out) * 2)(a, out), out, look


@same_as_eager
def test_a_new_out_argument_is_laid_out_as_the_kernel_resizes_it(wrap):
    def fn(a):
        out = torch.empty(1)
        torch.mul(a.permute(0, 2, 3, 1), 2, out=out)
        return out, out.t() if out.dim() == 2 else out.flatten()

    return wrap(fn)(torch.randn(2, 3, 4, 5))


# -- histories ----------------------------------------------------------------------------------------------


def test_set_on_a_leaf_that_is_used_afterwards_is_refused():
    """Eager makes a second place where gradients of the leaf arrive."""

    def fn(w):
        with torch.no_grad():
            w.set_(w.detach())  # here
        return w * w

    assert_refused(fn, (leaf(3),), at="# here")


def test_another_shape_of_a_leaf_that_is_used_afterwards_is_refused():
    def fn(w):
        with torch.no_grad():
            w.unsqueeze_(1)  # here
        return w.view(2, 2) * 2

    assert_refused(fn, (leaf(4),), at="# here")


def test_a_gradient_between_a_leaf_that_is_a_view_and_a_view_of_it_is_refused():
    def fn(b, d):
        return torch.autograd.grad(d.sum(), b)[0] * 2  # here

    b = torch.randn(2, 6)[:, ::2].requires_grad_()
    assert_refused(fn, (b, b[:1]), at="# here")


def test_set_on_a_leaf_that_is_used_before():
    def fn(w):
        y = w * w.detach().clone()
        with torch.no_grad():
            w.set_(w.detach() * 2)
        return y

    assert_same(fn, lambda: (leaf(3),))


@also_compiled
def test_a_view_that_was_written_changes_its_geometry():
    def fn(c, a):
        a.lerp_(a @ c, 0.3)
        a.unsqueeze_(2)
        return c.abs()

    assert_same(fn, lambda: (leaf(3, 3).sin(), torch.randn(3, 2).t()))


@pytest.mark.parametrize("make", [lambda a: a.view_as(a), lambda a: a[-1:], lambda a: a.t().t()])
@pytest.mark.parametrize("write", [lambda v: v.select(0, 0).mul_(2.0), lambda v: v.copy_(v * v)])
@same_as_eager
def test_a_view_without_gradients_of_a_view_of_a_leaf_that_is_a_view(wrap, make, write):
    """The base of all three needs no gradient, so a write to the last is none to the others for autograd."""

    def fn(b):
        with torch.no_grad():
            view = b.view(b.shape)
        write(view)
        return b.abs(), view

    x = torch.arange(8.0).view(2, 4)[:, :4].requires_grad_()
    b = make(x)
    results = wrap(fn)(b)
    return results, x, b, [history(t) for t in (*results, b)]


@same_as_eager
def test_a_write_to_a_view_of_a_leaf_that_is_a_view_is_refused_by_autograd(wrap):
    return wrap(lambda b: b.mul_(2) * 3)(torch.ones(2, 6)[:, ::2].requires_grad_()[:1])


@pytest.mark.parametrize(
    "make",
    [
        lambda a: torch.autograd.grad(a.sum(), a, create_graph=True)[0],
        lambda a: a.detach().chunk(2, 1)[1],
        lambda a: (a.detach() * 1).t(),
        lambda a: a.detach() * 1,
        lambda a: a.detach(),
    ],
)
@pytest.mark.parametrize("look", [lambda v: v.t(), lambda v: v[0], lambda v: v.t().t()[1:]])
@same_as_eager
def test_a_view_of_a_tensor_that_was_told_to_require_a_gradient(wrap, make, look):
    def fn(a):
        v = make(a)
        before = v[:1]
        v.requires_grad_()
        return look(v), before

    results = wrap(fn)(leaf(2, 2) + 0)
    return results, [history(t) for t in results]


@same_as_eager
def test_requires_grad_is_set_and_taken_back_between_views(wrap):
    def fn(a):
        v = a.detach().view(2, 2)
        v.requires_grad_()
        first = v.t()
        v.requires_grad_(False)
        return first, v.t(), v

    results = wrap(fn)(leaf(4) + 0)
    return results, [history(t) for t in results]


def test_a_view_that_is_a_leaf_beside_what_depends_on_it_is_refused():
    def fn(a):  # here
        v = a.detach().view(2, 2)[0]
        v.requires_grad_()
        return v, v * 2

    assert_refused(fn, (leaf(4) + 0,), at="# here")


# -- versions -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", [lambda v: v.chunk(2)[0], lambda v: v.unbind()[1], lambda v: v[:1]])
@pytest.mark.parametrize("change", [lambda v: v.unsqueeze_(1), lambda v: v.t_(), lambda v: v.view(-1).t_()])
@pytest.mark.parametrize("source", [lambda a: a * 2, lambda a: a])
@same_as_eager
def test_a_part_is_older_than_a_change_of_the_geometry(wrap, part, change, source):
    """Of a view that is one of several, autograd refuses to tell the history then."""

    def fn(a):
        v = source(a)
        one = part(v)
        change(v)
        return one

    a = leaf(4) + 0
    result = wrap(fn)(a)
    return result.detach(), result._version, history(result)


@same_as_eager
def test_a_view_made_without_gradients_is_older_than_a_write_to_a_tensor_made_like_another(wrap):
    def fn(a):
        v = torch.zeros_like(a)
        v.copy_(a)
        with torch.no_grad():
            view = v[:2]
            view.fill_(0.5)
        return view

    result = wrap(fn)(leaf(3) * 1)
    return result.detach(), result._version, history(result)


@same_as_eager
def test_a_write_after_the_call_to_an_input_that_was_written_and_turned(wrap):
    """Backward needs what the function wrote there."""

    def fn(b, a):
        b.copy_(b * 2)
        a.t_()
        return a.abs()

    a = leaf(6) + 0
    result = wrap(fn)(a[1:], a)
    a.sin_()
    try:
        result.sum().backward()
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)


@same_as_eager
def test_what_is_detached_from_an_input_with_other_data_shares_its_versions(wrap):
    def fn(x):
        x.data = torch.zeros(3)
        return x.detach()

    x = torch.ones(4)
    x.add_(1)
    result = wrap(fn)(x)
    result.add_(1)
    return result, x


def _write(written):
    written.mul_(2.0)


def _set_part(written):
    written[:1] = 0.5


@pytest.mark.parametrize(
    "other", [lambda a: a.detach(), lambda a: a.data, lambda a: a[2:], lambda a: a.detach()[1:], lambda a: a[:0].t()]
)
@pytest.mark.parametrize("make", [lambda: leaf(2, 2), lambda: leaf(2, 2) * 1, lambda: leaf(2, 4)[:, ::2].cos()])
@pytest.mark.parametrize("write", [_write, _set_part])
@pytest.mark.parametrize("is_written_first", [False, True])
@same_as_eager
def test_a_backward_after_a_write_through_another_argument(wrap, other, make, write, is_written_first):
    """Autograd refuses it if the two share a version counter, whether or not they have elements in common."""

    def fn(written, a):
        if is_written_first:
            write(written)
        result = a.cos() * a
        if not is_written_first:
            write(written)
        return result

    a = make()
    written = other(a)
    try:
        result = wrap(fn)(written, a)
        result.sum().backward()
    except RuntimeError as error:
        return type(error), "inplace" in str(error) or "in-place" in str(error), a.detach(), a._version
    return result, a, written


@same_as_eager
def test_a_call_notices_which_arguments_share_a_version_counter(wrap):
    def fn(a, written):
        result = a.cos()
        written.mul_(2.0)
        return result

    f, told = wrap(fn), []
    for other in (lambda t: t.detach(), lambda t: t.data, lambda t: t.detach()):
        a = leaf(3)
        result = f(a, other(a))
        try:
            result.sum().backward()
            told.append((a._version, a.grad))
        except RuntimeError:
            told.append((a._version, "refused"))
    return told


# -- leaves made of inputs that share memory ----------------------------------------------------------------


@pytest.mark.parametrize("other", [lambda a: a.data, lambda a: a.detach()])
@same_as_eager
def test_an_input_in_shared_memory_is_told_to_require_a_gradient(wrap, other):
    a = torch.randn(3, 2).t()
    b = other(a)

    def fn(b, a):
        a.requires_grad_()
        return a.sin() * b

    wrap(fn)(b, a).sum().backward()
    return a, grads_of(a), b


def test_an_input_in_memory_that_is_written_is_told_to_require_a_gradient():
    def fn(b, a):  # here
        a.requires_grad_()
        with torch.no_grad():
            b.mul_(2)
        return a.sin() * b

    a = torch.randn(3, 2).t()
    assert_refused(fn, (a.data, a), at="# here")


# -- ops whose results nobody uses --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda x: torch.zeros(0, 3)[torch.tensor([0, 0])],
        lambda x: torch.zeros(0, 3).index_select(0, torch.tensor([0])),
        lambda x: x.double().index_put_((torch.tensor([0]),), torch.tensor(0.5), accumulate=True),
    ],
)
@same_as_eager
def test_an_op_that_its_kernel_refuses_is_refused_though_nobody_uses_its_result(wrap, use):
    def fn(x):
        use(x)
        return x * 2

    try:
        return wrap(fn)(torch.ones(3))
    except (IndexError, RuntimeError) as error:
        return type(error)


@same_as_eager
def test_a_new_result_lies_in_memory_of_its_own_beside_a_write_to_a_part(wrap):
    def fn(part):
        part.copy_(part)
        return part.sin()

    result = wrap(fn)(torch.ones(6, dtype=torch.float64)[-1:])
    return result, result.storage_offset(), result.untyped_storage().nbytes()


# -- orders -------------------------------------------------------------------------------------------------


@same_as_eager
def test_a_backward_from_some_results_checks_what_only_its_own_nodes_have_saved(wrap):
    """`complex` saves what its formula does not use."""

    def fn(a):
        return torch.complex(a, a), a.sigmoid() * a

    a = leaf(3).sin()
    first, second = wrap(fn)(a)
    a.mul_(2)
    told = []
    for result in (first.real, second):
        try:
            result.sum().backward(retain_graph=True)
            told.append("went through")
        except RuntimeError as error:
            told.append("modified by an inplace operation" in str(error))
    return told


@same_as_eager
def test_a_write_with_a_gradient_to_what_is_detached_from_another_argument(wrap):
    def fn(b, c):
        c.lerp_(b, 0.3)
        return (c.abs() + 1).cos()

    w = leaf(3)
    b = w.sin()
    c = b.detach()
    result = wrap(fn)(b, c)
    (first,) = torch.autograd.grad(result.sum(), w, create_graph=True)
    return first.detach(), b._version, c._version, b.detach()


@same_as_eager
def test_a_part_of_an_input_with_other_data_is_older_than_a_write_to_it(wrap):
    def fn(a):
        a.data = a.data * 2
        part = a.unbind(0)[0]
        with torch.no_grad():
            part.unsqueeze(0).zero_()
        return part

    result = wrap(fn)(leaf(1, 3))
    return result.detach(), result._version, history(result)


@same_as_eager
def test_a_view_made_without_gradients_of_what_changes_its_geometry(wrap):
    def fn(b):
        v = torch.stack([b, b])
        with torch.no_grad():
            view = v.unfold(2, 2, 1)
        v.transpose_(0, -1)
        return view

    result = wrap(fn)(leaf(3, 2))
    return result.detach(), history(result)


@pytest.mark.parametrize("make", [lambda: torch.randn(2, 2, 3)[0], lambda: torch.randn(2, 3)])
@pytest.mark.parametrize("part", [lambda a: a.unbind(1)[2], lambda a: a[:1]])
@same_as_eager
def test_a_part_of_an_input_that_requires_a_gradient_only_later(wrap, make, part):
    def fn(a):
        one = part(a)
        one.mul_(2.0)
        a.requires_grad_()
        return one[:1], (a * a).sum()

    a = make()
    view, total = wrap(fn)(a)
    total.backward()
    return view.detach(), history(view), grads_of(a), history(a)


def test_an_input_of_another_shape_than_before_that_is_told_to_require_a_gradient_is_refused():
    def fn(a):
        a.data = torch.zeros(3)  # here
        a.requires_grad_()
        return a * a

    assert_refused(fn, (torch.randn(2, 3)[1:],), at="# here")


@pytest.mark.parametrize("write", [lambda v: v.mul_(2), lambda v: v.transpose_(0, 1), lambda v: v[:1].zero_()])
def test_a_write_to_a_view_of_a_leaf_raises_in_its_own_line(write):
    """Before whatever the function would raise after it."""

    def f(part):
        write(part)
        raise ValueError("the line before has raised")

    assert_same(f, lambda: (leaf(6).view(-1)[1:],))


def test_a_view_of_a_leaf_is_written_without_gradients():
    def f(part):
        before = part * 2
        with torch.no_grad():
            part.mul_(3)
        return before, part * 2, part[1:]

    def make():
        whole = leaf(3, 2)
        return whole[1:], whole

    assert_same(f, lambda: (make()[0],), calls=2)
    assert_same(lambda part, whole: f(part), make, calls=2)
