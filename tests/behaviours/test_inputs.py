"""Inputs: writes, new geometry, new storage, duplicates, aliases, kinds (IN-1 to IN-15)."""

import enum

import pytest
import torch

import foregrad as fg
from tests.compare import (
    also_compiled,
    assert_refused,
    assert_same,
    compiled,
    grads_of,
    leaf,
    same_as_eager,
    some_compiled,
)


def non_leaf(*shape):
    return leaf(*shape).clone()


def write_by_scalar(v):
    v.mul_(2)
    return v * 3


def write_by_other(p, q):
    p.mul_(2)
    return p + q


# IN-1: data mutation

WRITES = {
    "scalar": lambda x, w: x.mul_(2),
    "tensor": lambda x, w: x.mul_(w),
    "twice": lambda x, w: x.mul_(2).add_(w),
    "copy": lambda x, w: x.copy_(w * 2),
    "zero": lambda x, w: x.zero_(),
    "fill": lambda x, w: x.fill_(w.sum()),
    "setitem": lambda x, w: x.__setitem__(0, 5.0),
    "setitem of a computed slice": lambda x, w: x.__setitem__(slice(0, 2), w[1:] * 2),
    "slice": lambda x, w: x[:2].mul_(3),
    "view of a view": lambda x, w: x[1:].view(-1)[:1].mul_(w[0]),
    "masked": lambda x, w: x.masked_fill_(w > 0, 7.0),
    "index_put": lambda x, w: x.index_put_((torch.tensor([0, 2]),), w[:2]),
    "index_add": lambda x, w: x.index_add_(0, torch.tensor([0, 0]), w[:2]),
    "out": lambda x, w: torch.mul(w.detach(), 2, out=x) if not x.requires_grad else x.mul_(2),
    "unary": lambda x, w: x.sigmoid_(),
    "where": lambda x, w: x.copy_(torch.where(w > 0, w, x)),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
@pytest.mark.parametrize("make", [non_leaf, torch.randn], ids=["non-leaf", "plain"])
def test_IN_1_data_mutation_reaches_the_input_and_its_gradient(write, make):
    def f(x, w):
        write(x, w)
        return x * 3

    assert_same(f, lambda: (make(3), leaf(3)), calls=2)


READ_TWICE = {
    "transposed": lambda y: y + y.t(),
    "a row of it": lambda y: y * y[:1],
    "a part, in another argument": lambda y: torch.lerp(y, y.t(), y[0]),
    "beside itself": lambda y: torch.addcmul(y, y.t(), y),
    "in a list": lambda y: torch._foreach_add([y, y + 1], [y.t(), y])[0],
    "the same": lambda y: y * y,
}


@pytest.mark.parametrize("read", some_compiled(READ_TWICE, "transposed", "a row of it"))
@pytest.mark.parametrize("is_stored", [False, True])
def test_IN_1_a_value_is_not_written_over_by_an_op_that_reads_it_through_a_view_too(read, is_stored):
    """Functions that write to an input compute in place where a value is read for the last time."""

    def f(x):
        x.add_(1)
        y = READ_TWICE[read](x.sin())
        if is_stored:
            x.copy_(y)
        return None if is_stored else y

    assert_same(f, lambda: (torch.randn(3, 3),), calls=2)


def test_IN_1_gradient_is_taken_at_the_value_before_the_mutation():
    def f(x):
        before = x * 2
        x.mul_(5)
        return before

    assert_same(f, lambda: (non_leaf(3),))


def test_IN_1_overwriting_a_saved_input_fails_in_backward_and_not_before():
    def f(x):
        y = x.sin()
        x.mul_(2)
        return y

    assert_same(f, lambda: (non_leaf(3),))


@also_compiled
def test_IN_1_several_inputs_written_from_each_other():
    def f(x, y, z):
        x.add_(y)
        y.mul_(z)
        z.copy_(x * 2)

    assert_same(f, lambda: (non_leaf(3), torch.randn(3), non_leaf(3)))


@also_compiled
@same_as_eager
def test_IN_1_a_write_through_a_view_argument_reaches_its_base(wrap):
    start = leaf(2, 3)
    base = start.clone()
    out = wrap(write_by_scalar)(base[1])
    (base.sum() + out.sum()).backward()
    return grads_of(start), base, out


# IN-2: a mutation that autograd need not see


def test_IN_2_plain_input_is_written_and_its_version_rises():
    assert_same(write_by_scalar, lambda: (torch.randn(2),), calls=2)


def test_IN_2_a_returned_written_input_is_the_input_itself():
    assert_same(lambda x: x.add_(1), lambda: (torch.randn(2),), calls=2)


def test_IN_2_the_program_declares_the_write_and_stays_functional():
    program = fg.capture(write_by_scalar, torch.ones(2))
    assert [item.name for item in program.signature.outputs if item.role == "write"] == ["v"]
    assert not any(
        node.target._schema.is_mutable
        for node in program.graph.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    )


# IN-3, IN-4: mutation under no_grad, and hidden from autograd


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("make", [leaf, non_leaf, torch.randn])
def test_IN_3_write_without_grad_uses_the_new_value_and_counts_once(mode, make):
    def f(x):
        with mode():
            x.mul_(2)
        return x * x

    assert_same(f, lambda: (make(3),), calls=2)


@pytest.mark.parametrize("write", [lambda x: x.mul_(2), lambda x: x.view(-1).mul_(2)], ids=["itself", "its view"])
def test_IN_3_in_place_on_a_leaf_is_refused_as_eager_refuses_it(write):
    assert_same(lambda x: write(x) * 1, lambda: (leaf(2),))


def test_IN_3_several_writes_without_grad_raise_the_version_as_often():
    @torch.no_grad()
    def f(x):
        x.mul_(2)
        x[0].add_(1)
        x.detach().sub_(3)

    assert_same(f, lambda: (leaf(3),))


def write_data(x):
    x.data.mul_(2)


def write_data_of_a_slice(x):
    x.data[1:].mul_(2)


def write_preserving_the_version(x):
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(x):
        x.mul_(2)


def write_detached(x):
    x.detach().mul_(2)


@pytest.mark.parametrize("write", [write_data, write_data_of_a_slice, write_preserving_the_version, write_detached])
@pytest.mark.parametrize("make", [leaf, non_leaf, torch.randn])
def test_IN_4_hidden_write_changes_the_value_and_the_version_as_eager(write, make):
    def f(x):
        write(x)
        return x * x

    assert_same(f, lambda: (make(3),))


def test_IN_4_a_hidden_write_after_use_changes_what_backward_reads():
    def f(x):
        y = x * x
        x.data.mul_(3)
        return y

    assert_same(f, lambda: (leaf(3),))


# IN-5, IN-6: metadata mutation

GEOMETRY = {
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.unsqueeze_(0).squeeze_(0).t_(),
    "as_strided_": lambda x: x.as_strided_((2, 2), (1, 2)),
    "shrinking resize_": lambda x: x.resize_(2, 2),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
}


@pytest.mark.parametrize("change", GEOMETRY.values(), ids=GEOMETRY)
@pytest.mark.parametrize("make", [torch.randn, non_leaf, leaf])
def test_IN_5_geometry_of_the_input_changes(change, make):
    def f(x):
        change(x)
        return x * 2

    assert_same(f, lambda: (make(2, 3),))


def test_IN_5_geometry_alone_moves_no_data_and_gets_no_tangent():
    def f(x):
        x.t_()
        return x.detach() * 2

    assert_same(f, lambda: (non_leaf(2, 3),))
    program = fg.capture(f, non_leaf(2, 3))
    assert not [item.name for item in program.signature.inputs if item.role == "tangent"]


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
@pytest.mark.parametrize("data_first", [True, False])
def test_IN_6_geometry_and_data_change_together(make, data_first):
    def f(x):
        if data_first:
            x[0].mul_(2)
        x.t_()
        if not data_first:
            x[0].mul_(2)
        return x * 3

    assert_same(f, lambda: (make(2, 3),), calls=2)


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_6_changes_that_cancel_leave_the_input_as_it_was(make):
    assert_same(lambda x: x.t_().t_() * 1, lambda: (make(2, 3),))


# IN-7, IN-8: set_ and resize


@same_as_eager
def test_IN_7_a_write_before_set_reaches_the_old_storage_and_one_after_it_the_new(wrap):
    def f(x):
        x.add_(1)
        with torch.no_grad():
            x.set_(torch.zeros(3))
        x.add_(5)
        return x * 2

    x = torch.ones(4)
    alias = x.view(4)
    return wrap(f)(x), x, alias


def test_IN_7_set_to_another_input_shares_its_storage():
    def f(x, y):
        x.set_(y)
        x.mul_(2)
        return y + 1

    assert_same(f, lambda: (torch.randn(4), torch.randn(3)), calls=2)


def test_IN_7_set_with_geometry_takes_that_part_of_the_source():
    assert_same(lambda x, y: x.set_(y, 1, (2,), (2,)) * 2, lambda: (torch.randn(4), torch.randn(6)))


def grow(x):
    x.resize_(8)
    x[4:] = 1
    return x.sum()


def grow_twice(x):
    x.mul_(2)
    x.resize_(2, 3)[1] = 3
    x.resize_(9)[6:] = 1
    return x * 2, x[2:7]


def grow_and_shrink(x):
    y = x * 2
    x.resize_(8).fill_(3)
    x.resize_(2).add_(1)
    return x * y[:2]


@pytest.mark.parametrize("fn", [grow, grow_twice, grow_and_shrink])
def test_IN_8_an_input_grows(fn):
    assert_same(fn, lambda: (torch.randn(4),), calls=2)


def test_IN_8_an_input_grows_for_a_result():
    assert_same(lambda x, y: torch.add(y, 1, out=x) * 2, lambda: (torch.empty(0), torch.randn(4)), calls=2)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("size", [0, 1, 3])
def test_IN_8_an_expanded_input_is_not_resized_for_a_result(size):
    """Eager raises an error; the new shape would hide from capture what is wrong with the old one."""

    def f(x, y):
        torch.add(y, 1, out=x[:1].expand(2))
        return x + 1

    assert_refused(f, (torch.randn(3), torch.randn(size)), at="out=")


def test_IN_8_an_input_that_shares_memory_grows():
    def f(x, y):
        x.resize_(8).fill_(2)
        return x * 2 + y.sum()

    assert_same(f, lambda: (lambda x: (x, x[:2]))(torch.randn(4)), calls=2)


def _or_else(x):
    try:
        return x.as_strided((4,), (1,)) * 2
    except RuntimeError:
        return x * 3


REACHES_BEHIND = {
    "as_strided": lambda x: x.as_strided((2, 2), (2, 1)),
    "whose result nobody uses": lambda x: (x.expand(2, 2).as_strided((2, 2), (2, 1)), 7)[1],
    "of a part": lambda x: x[1:].as_strided((3,), (1,)) * 2,
    "as_strided_": lambda x: x.as_strided_((4,), (1,)) * 2,
    "set_": lambda x: torch.empty(0).set_(x, 0, (4,), (1,)) * 2,
    "where an error is caught": _or_else,
}


@pytest.mark.parametrize("way", REACHES_BEHIND)
def test_reaching_into_memory_behind_an_input_is_refused(way):
    given = torch.arange(4.0)[:2]
    assert_refused(REACHES_BEHIND[way], (given,), at="set_" if way == "set_" else "as_strided")
    with pytest.raises(fg.CaptureError, match="memory behind a tensor"):
        compiled(REACHES_BEHIND[way])(given)


def test_memory_that_is_not_there_is_an_error_as_in_eager():
    with pytest.raises(RuntimeError, match="out of bounds for storage"):
        compiled(lambda x: x.as_strided((5,), (1,)))(torch.arange(4.0)[:2])


def test_memory_before_an_input_can_be_read():
    assert_same(lambda x: x.as_strided((3,), (1,), 0) * 2, lambda: (torch.arange(4.0)[2:],))


def test_IN_8_growing_into_memory_that_is_there_already_is_refused():
    def f(x):
        return x.resize_(4) * 2

    assert_refused(f, (torch.arange(4.0).resize_(2),), at="resize_(4)")
    g = compiled(lambda x: x.resize_(4).fill_(1))
    g(torch.ones(2))
    with pytest.raises(fg.CaptureError, match="memory behind it"):
        g(torch.ones(4).resize_(2))


def test_IN_8_storage_freed_inside_is_refused():
    def f(x):
        y = x * 2
        x.untyped_storage().resize_(0)
        return y

    assert_refused(f, (torch.randn(4),), at="untyped_storage()")


def test_IN_8_storage_allocated_again_and_filled_inside_is_refused():
    def f(x, y):
        x.untyped_storage().resize_(16)
        x.copy_(y)
        return x * 2

    x, y = torch.randn(4), torch.randn(4)
    x.untyped_storage().resize_(0)
    assert_refused(f, (x, y), at="untyped_storage()")


# IN-9: other state of a tensor


def assign_data(x):
    x.data = torch.zeros(3)


def assign_data_of_other_shape(x):
    x.data = torch.zeros(2, 5)


def assign_data_then_write(x):
    x.data = x.data * 2
    x.data.add_(1)


@pytest.mark.parametrize(
    ("assign", "make"),
    [
        (assign_data, torch.randn),
        (assign_data, leaf),
        (assign_data_of_other_shape, torch.randn),
        (assign_data_then_write, torch.randn),
        (assign_data_then_write, leaf),
    ],
)
def test_IN_9_assigning_data_is_seen_inside_and_outside(assign, make):
    def f(x):
        assign(x)
        return x * 2

    assert_same(f, lambda: (make(3),), calls=2)


def test_IN_9_assigning_data_of_other_shape_to_a_leaf_that_needs_a_gradient_is_refused():
    def f(x):
        x.data = torch.zeros(2, 5)
        return x * 2

    assert_refused(f, (leaf(3),), at="x.data =")


@same_as_eager
def test_IN_9_the_old_data_is_left_alone_when_data_is_assigned(wrap):
    def f(x):
        x.mul_(3)
        x.data = torch.zeros(3)
        return x + 1

    x = torch.ones(3)
    old = x.detach()
    return wrap(f)(x), x, old


@pytest.mark.parametrize("requires", [True, False])
@pytest.mark.parametrize("make", [torch.randn, leaf])
def test_IN_9_requires_grad_is_set_on_the_input(requires, make):
    assert_same(lambda x: x.requires_grad_(requires) * 2, lambda: (make(3),), calls=2)


def test_IN_9_detach_in_place_cuts_the_input_from_its_history():
    assert_same(lambda x: x.detach_() * 2, lambda: (non_leaf(3),))


def test_IN_9_a_python_attribute_on_an_input_is_kept_or_refused():
    def f(x):
        x.mark = "seen"
        return x * 2

    g = compiled(f)
    for x in (torch.ones(2), torch.zeros(2)):
        try:
            g(x)
        except fg.CaptureError:
            return
        assert x.mark == "seen"


# IN-10: duplicate arguments


def test_IN_10_a_duplicate_is_counted_once_in_the_gradient():
    def twice(make):
        def inputs():
            x = make(2)
            return x, x

        return inputs

    assert_same(lambda a, b: a * b, [twice(leaf), lambda: (leaf(2), leaf(2)), twice(non_leaf)], calls=2)


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_10_a_written_duplicate_is_read_through_both_names(make):
    def same():
        x = make(2)
        return x, x

    def distinct():
        return make(2), make(2)

    assert_same(write_by_other, [same, distinct], calls=2)


def test_IN_10_duplicates_inside_containers():
    def f(pair, table):
        pair[0].mul_(2)
        return pair[1] + table["x"]

    def inputs():
        x = non_leaf(2)
        return [x, x], {"x": x}

    assert_same(f, inputs)


# IN-11, IN-12: aliased inputs

OVERLAPS = {
    "view and slice": lambda b: (b.view(4), b[:4]),
    "base and view": lambda b: (b, b.view(4)),
    "view and base": lambda b: (b.view(4), b),
    "reversed geometry": lambda b: (b.view(2, 2).t(), b.view(2, 2)),
    "view of a view": lambda b: (b[1:3], b[1:][:2]),
}


def aliased(make, views):
    return lambda: views(make(4))


@pytest.mark.parametrize("views", OVERLAPS.values(), ids=OVERLAPS)
@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_11_a_write_to_one_alias_is_read_through_the_other(make, views):
    assert_same(write_by_other, aliased(make, views), calls=2)


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_11_partly_overlapping_slices(make):
    def f(p, q):
        p.mul_(2)
        return q * 3

    assert_same(f, aliased(make, lambda b: (b[:3], b[1:])))


EXPANDED = {
    "rows": lambda b: b.expand(2, 4),
    "within": lambda b: b.view(2, 2).t().unsqueeze(1).expand(2, 3, 2),
    "one element": lambda b: b[1:2].expand(3, 2),
}
FILLS = {
    "zero": torch.Tensor.zero_,
    "fill": lambda x: x.fill_(3.0),
    "a part": lambda x: x.select(x.stride().index(0), 1).view(-1)[:1].mul_(2),
    "no counter": lambda x: x.select(x.stride().index(0), 1).data.view(-1)[:1].mul_(2),
}


@pytest.mark.parametrize("fill", FILLS.values(), ids=FILLS)
@pytest.mark.parametrize("view", EXPANDED.values(), ids=EXPANDED)
@same_as_eager
def test_IN_11_an_input_some_of_whose_elements_are_one_place_in_memory(wrap, view, fill):
    base = torch.arange(4.0)
    x = view(base)

    def f(x):
        fill(x)
        return x, x * 2

    return wrap(f)(x), x, base, x._version


@pytest.mark.parametrize("view", EXPANDED.values(), ids=EXPANDED)
def test_IN_11_a_fill_of_an_expanded_tensor_inside(view):
    def f(x, w):
        inner = x.clone()
        view(inner).fill_(2.0)
        return view(x).zero_() + 1, inner * w

    assert_same(f, lambda: (torch.randn(4), leaf(4)))


@pytest.mark.parametrize("views", OVERLAPS.values(), ids=OVERLAPS)
def test_IN_11_aliases_without_a_write(views):
    assert_same(lambda p, q: p * q, aliased(leaf, views))


@same_as_eager
def test_IN_11_aliases_that_are_no_views_of_one_another(wrap):
    x = torch.randn(4)
    return wrap(write_by_other)(x, x.detach()), x


@same_as_eager
def test_IN_11_the_base_outside_sees_the_writes_and_their_gradient(wrap):
    start = leaf(4)
    base = start.clone()
    out = wrap(write_by_other)(base[:3], base[:3])
    (out.sum() + (base * 2).sum()).backward()
    return out, base, grads_of(start)


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_12_disjoint_parts_of_one_storage_stay_apart(make):
    assert_same(write_by_other, aliased(make, lambda b: (b[:2], b[2:])), calls=2)


@pytest.mark.parametrize("make", [torch.randn, non_leaf])
def test_IN_12_disjoint_then_overlapping_then_separate(make):
    disjoint = aliased(make, lambda b: (b[:2], b[2:]))
    overlapping = aliased(make, lambda b: (b[:2], b[:2]))
    interleaved = aliased(make, lambda b: (b[::2], b[1::2]))
    assert_same(write_by_other, [disjoint, overlapping, interleaved, lambda: (make(2), make(2))], calls=2)


# IN-13, IN-14: histories, and writes in backward


@same_as_eager
def test_IN_13_backward_does_not_walk_into_the_history_of_an_input_without_gradient(wrap):
    y = leaf(2) * 2
    y.sum().backward()
    x = leaf(2)
    wrap(lambda p, q: p * q.detach())(x, y).sum().backward()
    return grads_of(x)


class WritesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        buffer.mul_(3)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(1)
        return g * 2, None


@also_compiled
@same_as_eager
def test_IN_14_a_write_in_backward_happens_in_backward(wrap):
    x, b = leaf(2), torch.ones(1)
    out = wrap(lambda x, b: WritesInBackward.apply(x, b))(x, b)
    after_forward = b.clone()
    out.sum().backward()
    return out, after_forward, b, grads_of(x)


@same_as_eager
def test_IN_14_a_write_in_backward_starts_from_the_value_at_that_time(wrap):
    x, b = leaf(2), torch.ones(1)
    out = wrap(lambda x, b: WritesInBackward.apply(x, b))(x, b)
    b.fill_(100)
    out.sum().backward()
    return b, grads_of(x)


class ReadsAndWritesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(g.sum())
        return g * ctx.buffer, None


@same_as_eager
def test_IN_14_gradient_uses_the_value_written_in_backward(wrap):
    x, b = leaf(2), torch.ones(1)
    f = wrap(lambda x, b: ReadsAndWritesInBackward.apply(x, b))
    first, second = f(x, b), f(x, b)
    first.sum().backward()
    second.sum().backward()
    return b, grads_of(x)


# IN-15: kinds of inputs


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


VALUES = [
    2,
    2.5,
    True,
    None,
    "text",
    torch.float64,
    torch.device("cpu"),
    slice(0, 1),
    (1, 2),
    Colour.RED,
    torch.sin,
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_IN_15_python_values_may_be_arguments(value):
    def f(x, v):
        return x * v if isinstance(v, int | float) else x * len(str(v))

    assert_same(f, lambda: (leaf(3), value), calls=2)


@pytest.mark.parametrize(
    ("first", "second"), [(2, 3), (2.0, -2.0), (True, 1), (0.0, -0.0), (1, 1.0), (Colour.RED, Colour.BLUE)]
)
def test_IN_15_another_python_value_is_another_program(first, second):
    def f(x, v):
        return x * (v.value if isinstance(v, Colour) else v), type(v).__name__

    assert_same(f, [lambda: (leaf(3), first), lambda: (leaf(3), second)], calls=2)


def test_IN_15_an_object_of_any_class_may_be_an_argument():
    class Settings:
        scale = 3.0

    settings = Settings()
    assert_same(lambda x, s: x * s.scale, lambda: (leaf(2), settings), calls=2)


@same_as_eager
def test_IN_15_a_closed_over_tensor_is_an_input_and_gets_its_gradient(wrap):
    w = leaf(2)
    f = wrap(lambda x: x * w)
    first = f(torch.ones(2))
    first.sum().backward()
    return first, grads_of(w)


def test_IN_15_constants_built_inside_are_part_of_the_program():
    assert_same(lambda x: x + torch.tensor([1.0, 2.0]), lambda: (leaf(2),), calls=2)


def test_IN_15_no_inputs_at_all():
    assert_same(lambda: torch.ones(2) * 3, tuple, calls=2)


def test_IN_15_a_constant_that_is_written_starts_anew_at_each_call():
    def f(x):
        total = torch.tensor([0.0, 1.0])
        total += x
        return total

    assert_same(f, lambda: (leaf(2),), calls=2)


# Two arguments over one memory, of two dtypes


def beside(view, *shape, dtype=torch.float32, requires_grad=False):
    def make():
        x = torch.randn(shape, dtype=dtype).requires_grad_(requires_grad)
        return x, view(x)

    return make


TWO_DTYPES = {
    "integers": beside(lambda x: x.view(torch.int32), 4),
    "a smaller dtype": beside(lambda x: x.view(torch.float16), 4),
    "a larger dtype": beside(lambda x: x.view(torch.complex64), 4),
    "parts of both": lambda: (lambda x: (x[:2], x[1:].view(torch.int32)))(torch.randn(4)),
    "complex as real": beside(torch.view_as_real, 4, dtype=torch.complex64),
    "the real part": beside(lambda x: x.real, 4, dtype=torch.complex64),
    "complex as real, of a leaf": beside(torch.view_as_real, 4, dtype=torch.complex64, requires_grad=True),
    "integers, of a leaf": beside(lambda x: x.detach().view(torch.int32), 4, requires_grad=True),
}


def write_both(p, q):
    with torch.no_grad():
        p.mul_(2)
        q.add_(1)
        p[1:].sub_(1)
    return p * 2, q * 2


@pytest.mark.parametrize("make", TWO_DTYPES.values(), ids=TWO_DTYPES)
@pytest.mark.parametrize(
    "fn",
    [
        lambda p, q: (p * 2, q + 1),
        lambda p, q: (p.mul_(2), q + 1),
        lambda p, q: (q.mul_(2), p + 1),
        write_both,
    ],
    ids=["read", "first", "second", "both"],
)
def test_arguments_of_two_dtypes_share_memory(fn, make):
    assert_same(fn, make, calls=2)


@also_compiled
def test_random_numbers_fill_a_transposed_tensor_in_the_order_of_its_memory():
    assert_same(lambda x: torch.nn.functional.dropout(x, 0.5).mul(2), lambda: (leaf(3, 2).t(),), calls=2)
    assert_same(lambda x: x.bernoulli_() + x.normal_(), lambda: (torch.randn(3, 2).t(),), calls=2)


ONE_TENSOR_TWICE = {
    "observer": lambda x: torch._fused_moving_avg_obs_fq_helper(
        x, torch.ones(1), torch.ones(1), x, x, x, x, 0.5, 0, 255, -1
    ),
    "addmm_": lambda x: x.addmm_(x, x),
    "addmm": lambda x: torch.addmm(x, x, torch.ones(3, 3), out=x),
    "cumsum into a part": lambda x: torch.cumsum(x[:2], 0, out=x[1:]),
    "a permutation of itself": lambda x: x.index_copy_(0, torch.arange(x.shape[0]).flip(0), x),
    "foreach": lambda x: torch._foreach_add_([x, x], 1.0),
    "foreach of a view": lambda x: torch._foreach_add_([x, x[0]], 1.0),
    "out": lambda x: torch.aminmax(x, dim=0, out=(x[0], x[0])),
}


@pytest.mark.parametrize("name", ONE_TENSOR_TWICE)
def test_one_tensor_as_several_arguments_of_an_op_that_writes_to_it_is_refused(name):
    x = torch.ones(1) if name == "observer" else torch.arange(9.0).reshape(3, 3)
    before = x.clone()
    with pytest.raises(fg.CaptureError, match=r"an op (writes|reads)"):
        compiled(ONE_TENSOR_TWICE[name])(x)
    assert torch.equal(x, before)


IN_PLACE_BY_OUT = {
    "addmm": lambda x: torch.addmm(x, torch.ones(3, 2), torch.ones(2, 3), alpha=-1, out=x),
    "baddbmm": lambda x: torch.baddbmm(x[None], torch.ones(1, 3, 2), torch.ones(1, 2, 3), out=x[None]),
    "cumsum": lambda x: torch.cumsum(x, 0, out=x),
    "index_add": lambda x: torch.index_add(x, 0, torch.tensor([0, 0]), torch.ones(2, 3), out=x),
    "a part": lambda x: torch.addmm(x[1:], torch.ones(2, 2), torch.ones(2, 3), out=x[1:]),
}


@pytest.mark.parametrize("name", IN_PLACE_BY_OUT)
def test_an_op_that_has_a_form_in_place_writes_its_result_over_its_first_argument(name):
    assert_same(IN_PLACE_BY_OUT[name], lambda: (torch.arange(9.0).reshape(3, 3),))


def test_a_linear_cross_entropy_in_chunks():
    functional, options = torch.nn.functional, torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2)

    def loss(x, weight):
        target = torch.tensor([0, 2, 1, 3])
        return functional.linear_cross_entropy(x, weight, target, reduction="none", options=options)

    assert_same(loss, lambda: (leaf(4, 3), leaf(4, 3)), without=("_version",))  # torch's kernel writes to its result


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.index_put_((torch.tensor([0, -1]),), x),
        lambda x: x.index_add_(0, torch.arange(0), x),
        lambda x: x.scatter_(0, torch.arange(0), x),
        lambda x: x.put_(torch.arange(0), x),
    ],
)
def test_one_tensor_without_elements_as_several_arguments_is_refused_as_by_eager(write):
    with pytest.raises(RuntimeError, match="single memory location"):
        write(torch.ones(0))
    with pytest.raises(fg.CaptureError, match="another argument of it too"):
        compiled(write)(torch.ones(0))


@pytest.mark.parametrize("write", [lambda x: x.add_(x), lambda x: x.lerp_(x, 0.5), lambda x: x.copy_(x)])
def test_one_tensor_as_several_arguments_of_a_pointwise_op(write):
    ours, theirs = torch.arange(4.0), torch.arange(4.0)
    compiled(write)(ours)
    write(theirs)
    assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("is_out", [True, False])
def test_a_part_of_an_input_that_is_resized_over_memory_beside_the_input_is_refused(is_out):
    """What the input does not show was left as it was."""

    def resized(x):
        part = x[::2]
        part.resize_(2, 2)
        part.fill_(7.0)
        return part

    def out(x):
        part, y = x[::2], x + 1
        torch.sin(y, out=part)
        return part

    x = torch.arange(6.0).view(2, 3)[:, :2]
    assert_refused(out if is_out else resized, (x,), at="torch.sin" if is_out else "part.fill_")
