"""Histories: an input that gets another geometry, other data and another history in one call."""

import pytest
import torch

import foregrad as fg
from tests.compare import Gradients, assert_refused, assert_same, leaf, same_as_eager


class Doubled(torch.autograd.Function):
    """Writes to its argument, whose gradient it makes three times as large."""

    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def non_leaf():
    return leaf(2, 3).sin()


def view_of_non_leaf():
    return leaf(3, 3).sin()[1:]


def view_of_view():
    return leaf(6).sin().view(2, 3).view(2, 3)


MAKERS = [non_leaf, view_of_non_leaf, view_of_view]


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_an_input_that_was_transposed(make):
    def f(x):
        x.t_()
        return Doubled.apply(x).sin()

    assert_same(f, lambda: (make(),), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_an_input_that_is_transposed_afterwards(make):
    def f(x):
        Doubled.apply(x)
        x.t_()
        return x.sin()

    assert_same(f, lambda: (make(),), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_custom_function_writes_to_a_part_of_an_input_that_was_transposed(make):
    def f(x):
        x.t_()
        Doubled.apply(x[0])
        x.unsqueeze_(0)
        return x.sin()

    assert_same(f, lambda: (make(),), calls=2)


def test_an_input_is_written_and_then_detached_from_its_history():
    def f(x, w):
        x.mul_(w)
        x.detach_()
        return x * w

    assert_same(f, lambda: (non_leaf(), leaf(2, 3)), calls=2)


def test_an_input_is_detached_transposed_and_gets_a_new_history():
    def f(x, w):
        x.mul_(w)
        x.t_().detach_()
        x.mul_(w.t()).t_()
        return x.sin()

    assert_same(f, lambda: (non_leaf(), leaf(2, 3)), calls=2)


@pytest.mark.parametrize("make", MAKERS)
def test_a_transposed_input_that_nobody_wrote_gets_no_new_history(make):
    def f(x, w):
        x.t_().unsqueeze_(0).squeeze_(0)
        return x.sin() * w

    assert_same(f, lambda: (make(), leaf(3, 2)), calls=2)


# A view whose memory was written gets its history anew when autograd next asks for it.


def test_a_gradient_from_before_a_write_reaches_a_leaf_that_is_itself_a_view():
    """Its base needs no gradient: after the write its views have lost the leaf, and what came before has not."""

    def f(part):
        before = part + 0.5
        with torch.no_grad():
            looks = part[:, ::2]
        looks.mul_(2).add_(1)
        return before.sin()

    def make():
        at_edge = torch.randn(3, 2).t().requires_grad_()
        return at_edge[-1:], at_edge

    assert_same(lambda part, at_edge: f(part), make, calls=2)
    assert_same(f, lambda: (make()[0],), calls=2)


def test_views_of_one_of_several_views_are_made_before_the_writes_that_make_it_stale():
    def f(row, w):
        whole = row.view(1, 3)
        part = whole[:, :2]
        with torch.no_grad():
            whole *= w
            part.mul_(2).add_(1)
        return part.detach(), part

    def make():
        return leaf(3, 3).sin().unbind(0)[0], leaf(3)

    assert_same(f, make, calls=2, backward=False)


def test_a_view_gets_other_data_between_two_writes():
    """Its base is not written by the second one, and gets its history nevertheless."""

    def f(base, part, w):
        part.mul_(w)
        part.data = part.data * 2
        part.mul_(w * 2)
        return part * 1

    def make():
        base = leaf(6).sin()
        return base, base[1:], leaf(5)

    assert_same(f, make, calls=2)


def test_a_leaf_is_transposed_without_gradients_and_looked_at():
    """The node where its gradient arrives is made for the new shape: none of the capture's is left."""

    def f(x):
        with torch.no_grad():
            x.t_()
        return x[1:]

    assert_same(f, lambda: (leaf(2, 3),), calls=2)


def test_a_view_that_gets_other_memory_is_looked_for_in_its_base_if_it_is_written():
    """Where it has never been: what arrives there depends on a tensor that the function was not given."""

    def sets(part, other):
        with torch.no_grad():
            part.set_(other.detach())
        return part * 2

    def replaces(part, other):
        part.data = other.data * 1
        part.mul_(2)
        return part * 2

    assert_refused(sets, (leaf(6)[::2], leaf(6)), at="set_")
    assert_refused(replaces, (leaf(6).sin()[1:4], leaf(3)), at="part.data =")


def test_a_view_that_gets_other_memory_and_is_not_written_keeps_its_history():
    def f(part, other):
        part.data = other.data * 1
        return part * 2

    def make():
        whole = leaf(6)
        return whole[::2], leaf(3), whole

    assert_same(f, lambda: make()[:2], calls=2)
    assert_same(lambda part, other, whole: f(part, other), make, calls=2)


@same_as_eager
def test_a_view_of_a_view_that_was_made_without_gradients_gets_none(wrap):
    """The same function is then called with one that gets them."""

    @wrap
    def f(whole, part):
        before = part.sin()
        part.data.mul_(2)
        return before

    gradients = []
    for is_cut in (True, False, True):
        whole = torch.ones(2, 3, requires_grad=True)
        with torch.set_grad_enabled(not is_cut):
            look = whole.view(2, 3)
        part = look[:1]
        f(whole, part).sum().backward()
        gradients += [whole.grad]
    return Gradients(gradients)


@pytest.mark.parametrize("replaces", [True, False])
@same_as_eager
def test_a_view_without_history_of_a_view_that_was_written_before(wrap, replaces):
    """The write comes before the second view, also where the input has got other data before both."""

    def f(x):
        if replaces:
            x.data = x.data * 2
        first = x[3:]
        x.copy_(x)
        with torch.no_grad():
            second = first.view_as(first)
        return second[0:]

    out = wrap(f)((leaf(2, 3) * 1.5).view(-1))
    return out.detach(), out.is_leaf, out.grad_fn is None, out._version


@same_as_eager
def test_a_view_of_an_input_that_is_cut_off_from_its_history_later(wrap):
    def f(x):
        y = x.view(-1)
        x.detach_()
        return y

    start = leaf(2, 3)
    x = start * 2
    wrap(f)(x).sum().backward()
    return x.requires_grad, start.grad


@pytest.mark.parametrize("again", [False, True])
def test_a_view_of_a_new_tensor_that_is_cut_off_from_its_history_later_is_refused(again):
    def f(x):
        y = x * 2
        view = y.view(-1)
        y.detach_()
        if again:
            y.requires_grad_()
        return view

    assert_refused(f, (leaf(2, 3),), at="y.detach_()")


@same_as_eager
def test_a_leaf_that_is_moved_into_the_interior_of_its_own_graph(wrap):
    """Backward is refused with torch's words, where the process would end."""

    def f(x):
        y = x * 3
        x.requires_grad_(False)
        x.copy_(y)
        return y.detach()

    x = leaf(3)
    wrap(f)(x)
    x.sum().backward()


def test_a_view_that_was_written_and_gets_data_of_another_geometry_is_refused():
    """Autograd makes its history anew only when it is asked, and then looks for the new geometry in the old memory."""

    def f(x, y):
        y.unsqueeze(0).add_(1.0)
        y.data = y.data * 2
        return y.square()

    x = leaf(3).clone()
    assert_refused(f, (x, x[0::2]), at="y.data =")


NOT_FOLLOWED = {
    "a write to another view": lambda y, view: view.mul_(2),
    "another view changes its geometry": lambda y, view: view.transpose_(0, 1),
    "a write": lambda y, view: y.mul_(2),
    "a change of its geometry": lambda y, view: y.t_(),
    "a write past autograd": lambda y, view: y.detach().mul_(2),
}


@pytest.mark.parametrize("change", NOT_FOLLOWED)
def test_a_view_gets_data_of_another_geometry_after_what_autograd_does_not_follow(change):
    def f(y):
        view = y.view(4, 3)
        with torch.no_grad():
            NOT_FOLLOWED[change](y, view)
        y.data = y.data * 2
        return y * 1

    assert_refused(f, ((leaf(4, 4) * 1)[1:],), at="y.data =")


@same_as_eager
def test_a_view_gets_data_of_another_geometry_after_nothing(wrap):
    def f(y):
        y.data = y.data * 2
        return y * 1

    x = leaf(4, 4)
    y = (x * 1)[1:]
    out = wrap(f)(y)
    return out, torch.autograd.grad([out, y], x, [torch.ones(3, 4), torch.arange(12.0).view(3, 4)])


@pytest.mark.parametrize("is_input", [True, False])
def test_a_view_made_under_no_grad_that_is_told_to_require_a_gradient_is_refused(is_input):
    """It requires one before, as its base does, and gets none; then it gets its own, which was lost."""

    def part_of(x):
        with torch.no_grad():
            return x[0]

    def f(x):
        view = x if is_input else part_of(x)
        view.requires_grad_()
        return view.sin()

    x = leaf(2, 3).clone()
    assert_refused(f, (part_of(x) if is_input else x,), at="view.requires_grad_()")


@pytest.mark.parametrize("change", [lambda x: x.unsqueeze_(0), lambda x: x.t_()])
def test_a_new_tensor_that_gets_another_geometry_after_a_view_as_complex_numbers_is_refused(change):
    """The view came out as a real tensor, and only half of it."""

    def f(x):
        y = x * 2
        numbers = torch.view_as_complex(y)
        change(y)
        return numbers

    assert_refused(f, (leaf(2, 2),), at="torch.view_as_complex(y)")


@same_as_eager
def test_one_of_several_views_whose_base_was_written_may_get_other_data(wrap):
    """Autograd refuses to tell its history, which nobody needs."""

    def f(x):
        part = x.split([1, 3])[0]
        x *= x
        part.data = part.data * 2
        return part

    return wrap(f)(leaf(4).sin()).detach()


def test_an_input_that_was_written_and_then_set_to_memory_of_another_shape_is_refused():
    """Its backward failed; that of a view reads beside the gradient in eager."""

    def f(x, y):
        x.mul_(2)
        with torch.no_grad():
            x.set_(y)
        return x

    assert_refused(f, (leaf(3).clone(), leaf(2, 3).clone()), at="x.set_(y)")


def test_an_input_that_is_made_smaller_and_then_written_with_a_gradient_is_refused():
    """torch's error for a resize of a tensor that requires a gradient came out of the call."""

    def f(x, w):
        x.resize_(3)
        x.copy_(w)
        return x

    assert_refused(f, (torch.ones(4), leaf(3)), at="x.resize_(3)")


def test_a_gradient_inside_of_a_leaf_that_was_transposed_under_no_grad_is_refused():
    def f(x):
        with torch.no_grad():
            x.t_()
        return torch.autograd.grad(x.sum(), x, create_graph=True)[0]

    assert_refused(f, (leaf(2, 3),), at="torch.autograd.grad")


def test_a_detached_input_with_other_data_that_gets_a_history_is_refused():
    """The result had a version counter of its own, so autograd did not notice later writes to the input."""

    def f(x, w):
        x.data = x.data * 2
        y = x.detach()
        y.add_(w)
        return y

    assert_refused(f, (leaf(3), leaf(3)), at="y.add_(w)")


def test_an_input_that_was_written_and_gets_other_data_and_then_another_geometry_is_refused():
    """The gradient of a square input came out transposed."""

    def f(x):
        x.mul_(2)
        x.data = x.data * 2
        x.t_()
        return x.exp()

    assert_refused(f, (leaf(3, 3).clone(),), at="x.t_()")


def test_a_view_of_an_input_that_was_written_and_is_then_cut_off_is_refused():
    """It lost its gradient without a word."""

    def f(x):
        part = x[:1]
        part.mul_(2)
        x.detach_()
        return part

    with pytest.raises(fg.CaptureError, match="cuts a tensor off from its history in place"):
        fg.compile(f, backend="eager", cache=False)(torch.ones(3, requires_grad=True).exp())


def test_a_leaf_that_is_cut_off_and_gets_another_shape_is_refused():
    def f(x):
        y = x * x
        x.detach_()
        x.unsqueeze_(1)
        return y

    with pytest.raises(fg.CaptureError, match="another shape, and uses it afterwards"):
        fg.compile(f, backend="eager", cache=False)(torch.ones(3, requires_grad=True))


def test_the_counter_of_a_base_that_no_op_reads_moves_as_in_eager():
    def f(part, factor, whole):
        part.transpose_(0, -1)
        return whole @ factor

    def run(wrap):
        base = torch.arange(6.0).view(3, 2)
        whole = base.split(2)[0]
        part, leaf = whole[:1], torch.ones(2, 2, requires_grad=True)
        out = wrap(f)(part, leaf.sin(), whole)
        out.sum().backward()
        return out.tolist(), part.shape, leaf.grad.tolist(), base._version

    assert run(lambda f: fg.compile(f, backend="eager", cache=False)) == run(lambda f: f)


def test_a_view_of_a_view_whose_base_is_cut_off_is_refused():
    def f(x):
        y = x * 2
        part = y[:2]
        y.detach_()
        return part.unsqueeze(0)

    with pytest.raises(fg.CaptureError, match="cuts a tensor off from its history in place"):
        fg.compile(f, backend="eager", cache=False)(torch.ones(3, requires_grad=True))


def test_a_hook_on_an_input_that_has_got_another_geometry_is_refused():
    """It did not run where the input is used outside."""

    def f(x):
        x.transpose_(0, 1)
        x.register_hook(lambda gradient: gradient * 2)
        return x * 3

    with pytest.raises(fg.CaptureError, match="another geometry or data"):
        fg.compile(f, backend="eager", cache=False)(torch.ones(2, 3, requires_grad=True).exp())


def test_views_of_one_leaf_of_which_only_some_overlap():
    def f(first, last, one):
        return first * 2 + last * one

    def run(wrap):
        leaf = torch.arange(6.0, requires_grad=True)
        last = leaf[-1:]
        out = wrap(f)(leaf[:1], last, last[0])
        out.sum().backward()
        return out.tolist(), leaf.grad.tolist()

    assert run(lambda f: fg.compile(f, backend="eager", cache=False)) == run(lambda f: f)
