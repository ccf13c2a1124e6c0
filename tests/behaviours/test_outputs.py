"""Outputs: aliases of inputs and of intermediates, structure, flags (OUT-1 to OUT-12)."""

import collections
import dataclasses
import typing

import pytest
import torch

import foregrad as fg
from tests.compare import (
    Gradients,
    also_compiled,
    assert_same,
    compiled,
    grads_of,
    leaf,
    same_as_eager,
    some_compiled,
)


def non_leaf(*shape):
    return leaf(*shape).clone()


MAKERS = pytest.mark.parametrize("make", [leaf, non_leaf, torch.randn])

VIEWS = {
    "t": lambda x: x.t(),
    "view": lambda x: x.view(-1),
    "slice": lambda x: x[1:],
    "strided slice": lambda x: x[:, ::2],
    "select": lambda x: x[0],
    "expand": lambda x: x.expand(4, 2, 3),
    "diagonal": lambda x: x.diagonal(),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "permute": lambda x: x.permute(1, 0),
    "narrow": lambda x: x.narrow(1, 1, 2),
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2), 1),
    "unfold": lambda x: x.unfold(1, 2, 1),
    "detach": lambda x: x.detach(),
    "view_as itself": lambda x: x.view_as(x),
    "reshape": lambda x: x.reshape(3, 2),
    "flatten": lambda x: x.flatten(),
    "chain": lambda x: x.t()[1:].unsqueeze(0).squeeze(0).t(),
    "index by None and ...": lambda x: x[None, ..., 0],
}


# OUT-1: alias of an input


@MAKERS
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_OUT_1_a_view_of_an_input_is_a_view_of_the_users_tensor(view, make):
    assert_same(lambda x: (view(x), x * 2), lambda: (make(2, 3),))


@MAKERS
def test_OUT_1_only_views_and_no_computation(make):
    assert_same(lambda x: (x.t(), x[0]), lambda: (make(2, 3),), calls=2)


def test_OUT_1_a_view_of_a_written_input_is_made_after_the_write():
    def f(x):
        early = x.t()
        x.mul_(2)
        return early, x[0], x

    assert_same(f, lambda: (non_leaf(2, 3),))


@same_as_eager
def test_OUT_1_writing_the_output_afterwards_writes_the_input(wrap):
    start = leaf(2, 3)
    x = start.clone()
    view = wrap(lambda x: x.t()[1:])(x)
    view.mul_(5)
    x.sum().backward()
    return view, x, grads_of(start)


@same_as_eager
def test_OUT_1_a_view_of_an_argument_that_is_itself_a_view(wrap):
    base = non_leaf(4, 3)
    out = wrap(lambda x: x[1:])(base[1:])
    out.mul_(2)
    return base, out


# OUT-2: an output that is an input


@MAKERS
def test_OUT_2_an_input_comes_back_as_the_same_object(make):
    assert_same(lambda x, y: (x, y * 2, [x, {"y": y}]), lambda: (make(2), make(2)), calls=2)


def test_OUT_2_one_intermediate_returned_twice_is_one_object():
    def f(x):
        y = x * 2
        return y, y, y.t(), x

    assert_same(f, lambda: (leaf(2, 3),))


def test_OUT_2_a_written_input_comes_back_as_the_same_object():
    assert_same(lambda x: (x.mul_(2), x * 1), lambda: (non_leaf(2),))


# OUT-3, OUT-4, OUT-5: aliases of intermediates


@pytest.mark.parametrize("written", ["view", "transposed", "base"])
@same_as_eager
def test_OUT_3_writing_one_alias_of_an_intermediate_is_seen_by_the_others(wrap, written):
    def f(x):
        y = x * 2
        return {"view": y.view(-1), "transposed": y.t(), "base": y}

    x = leaf(2, 3)
    out = wrap(f)(x)
    out[written].mul_(3)
    torch.autograd.backward(list(out.values()), [torch.ones_like(t) for t in out.values()])
    return out, grads_of(x)


@also_compiled
def test_OUT_3_aliases_without_their_base():
    def f(x):
        y = x * 2
        return y.view(-1), y.t(), y[0]

    assert_same(f, lambda: (leaf(2, 3),), calls=2)


def test_OUT_3_aliases_of_an_intermediate_that_was_written():
    def f(x, w):
        y = x * 2
        y[0].mul_(w[0])
        z = y.t()
        z[1].add_(1)
        return y.view(-1), z

    assert_same(f, lambda: (leaf(2, 3), leaf(2, 3)))


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_OUT_4_a_single_view_of_an_intermediate(view):
    assert_same(lambda x: view(x * 2), lambda: (leaf(2, 3),))


@same_as_eager
def test_OUT_4_a_single_view_of_an_intermediate_may_be_written(wrap):
    x = leaf(2, 3)
    out = wrap(lambda x: (x * 2).view(-1))(x)
    out.mul_(2)
    out.sum().backward()
    return out, grads_of(x)


@also_compiled
def test_OUT_5_detached_alias_shares_memory_and_has_no_gradient():
    def f(x):
        y = x * 2
        return y, y.detach(), y.detach().view(-1)

    assert_same(f, lambda: (leaf(2, 3),))


def test_OUT_5_a_detached_part_of_a_constant_lies_where_eagers_does():
    """It was a copy of the part alone, at offset 0."""

    def f():
        return torch.tensor([1.0, -2.0]).unbind(0)[1].detach()

    assert_same(f, lambda: ())
    assert fg.compile(f, backend="eager")().storage_offset() == f().storage_offset() == 1


def test_OUT_5_detached_alias_that_was_written_with_a_gradient_of_its_own():
    def f(x, w):
        y = x * 2
        d = y.detach()
        d.mul_(w)
        return y, d

    assert_same(f, lambda: (leaf(2, 3), leaf(2, 3)))


PARTS = {
    "first one written": lambda v: (v[:2].detach().mul_(3), v[1:].detach()),
    "last one written": lambda v: (v[1:].detach().mul_(3), v[:2].detach()),
    "both written": lambda v: (v[1:].detach().mul_(3), v[:2].detach().add_(1)),
    "one alone": lambda v: v[1:].detach().mul_(3),
    "a diagonal": lambda v: (v.view(-1)[1:3].detach().mul_(3), v.as_strided((2,), (3,), 1).detach().add_(1)),
    "of a transposed one": lambda v: (v.t()[1:].detach().mul_(3), v.t()[:, 1:].detach()),
    "data": lambda v: (v[1:].detach().mul_(3), v[:2].data),
}


@pytest.mark.parametrize("parts", some_compiled(PARTS, "last one written", "one alone"))
@pytest.mark.parametrize("make", [leaf, torch.randn])
def test_OUT_5_detached_parts_of_an_intermediate_lie_in_one_memory(parts, make):
    """Though the intermediate itself is not returned, and one of the parts was written."""
    assert_same(lambda x: PARTS[parts](x * 2), lambda: (make(3, 2),), calls=2)


NEW = {
    "full": lambda x: torch.full((1,), 0.5),
    "zeros": lambda x: torch.zeros(1),
    "computed": lambda x: x.detach() * 2,
    "detach() of one": lambda x: (x.detach() * 2).detach(),
    "data of one": lambda x: (x.detach() * 2).data,
    "view of one": lambda x: (x.detach() * 2)[:1],
}


@pytest.mark.parametrize("new", NEW.values(), ids=NEW)
@MAKERS
def test_OUT_5_a_new_tensor_that_takes_over_the_memory_of_an_input(new, make):
    def f(x):
        y = new(x)
        y.set_(x.detach())
        z = new(x)
        z.data = x.detach()[1:]
        return y, z, y[:1]

    assert_same(f, lambda: (make(3),), calls=2)


# OUT-6: multi-output views

SPLITS = {
    "unbind": lambda x: x.unbind(0),
    "split": lambda x: x.split(1),
    "split sizes": lambda x: x.split([1, 1]),
    "chunk": lambda x: x.chunk(2),
    "tensor_split": lambda x: x.tensor_split(2),
    "hsplit": lambda x: x.hsplit([1]),
}
SOURCES = {"of the input": lambda x: x, "of an intermediate": lambda x: x * 2}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_OUT_6_multi_output_views(split, source):
    assert_same(lambda x: split(source(x)), lambda: (non_leaf(2, 3),))


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
@same_as_eager
def test_OUT_6_in_place_on_multi_output_views_is_refused_as_eager_refuses_it(wrap, split, source):
    wrap(lambda x: split(source(x)))(non_leaf(2, 3))[0].mul_(2)


@same_as_eager
def test_OUT_6_in_place_on_multi_output_views_without_grad(wrap):
    parts = wrap(lambda x: (x * 2).unbind(0))(leaf(2, 3))
    with torch.no_grad():
        parts[0].mul_(2)
    return parts


# OUT-7: a view made by a custom Function


class ViewWithOwnGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * 5


@pytest.mark.parametrize("make", [leaf, non_leaf])
def test_OUT_7_a_custom_view_keeps_its_own_gradient(make):
    assert_same(lambda x: ViewWithOwnGradient.apply(x), lambda: (make(2),), calls=2)


def test_OUT_7_a_custom_view_refuses_in_place_as_eager_does():
    for call in (ViewWithOwnGradient.apply, compiled(lambda x: ViewWithOwnGradient.apply(x))):
        view = call(non_leaf(2))
        with pytest.raises(RuntimeError, match="created inside a custom Function"):
            view.mul_(2)


def test_OUT_7_a_view_of_a_custom_view():
    assert_same(lambda x: (ViewWithOwnGradient.apply(x)[0], x * 3), lambda: (leaf(2),))


def test_OUT_7_a_custom_view_of_a_view_whose_geometry_was_changed_before():
    def f(x):
        flat = (x * 2).view(-1)
        flat.transpose_(0, 0)
        return ViewWithOwnGradient.apply(flat), flat

    assert_same(f, lambda: (leaf(2, 2),), calls=2)


# OUT-8: not differentiable


class MarksOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        rounded = x.round()
        ctx.mark_non_differentiable(rounded)
        return rounded, x * 2

    @staticmethod
    def backward(ctx, _, g):
        return g * 2


DISCRETE = {
    "argmax": lambda x: x.argmax(),
    "compare": lambda x: x > 0,
    "topk": lambda x: tuple(x.topk(2)),
    "sort": lambda x: tuple(x.sort()),
    "to int": lambda x: x.to(torch.int64),
    "marked": lambda x: MarksOne.apply(x),
    "no_grad": torch.no_grad()(lambda x: x * 3),
}


@pytest.mark.parametrize("discrete", DISCRETE.values(), ids=DISCRETE)
def test_OUT_8_outputs_that_have_no_gradient(discrete):
    assert_same(lambda x: (discrete(x), x * 2), lambda: (leaf(3),))


# OUT-9: views made under no_grad


@MAKERS
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_OUT_9_a_view_made_without_grad_stays_cut(make, mode, source):
    def f(x):
        y = source(x)
        with mode():
            view = y.view(-1)
        return view, x * 2

    assert_same(f, lambda: (make(2),))


@same_as_eager
def test_OUT_9_gradient_does_not_pass_through_a_view_made_without_grad(wrap):
    @torch.no_grad()
    def cut(x):
        return x.view(-1)

    x = leaf(2)
    view, double = wrap(lambda x: (cut(x), x * 2))(x)
    return Gradients(torch.autograd.grad((view + double).sum(), x))


@same_as_eager
def test_OUT_9_in_place_on_a_view_made_without_grad_answers_as_eager(wrap):
    def f(x):
        with torch.no_grad():
            return x.view(-1)

    return wrap(f)(non_leaf(2)).mul_(2)


# OUT-10: views of another dtype


def complex_leaf(*shape):
    return leaf(*shape, dtype=torch.complex64)


REINTERPRETED = {
    "view_as_real": (torch.view_as_real, complex_leaf),
    "real": (lambda x: x.real, complex_leaf),
    "imag": (lambda x: x.imag, complex_leaf),
    "conj": (lambda x: x.conj(), complex_leaf),
    "imag of conj": (lambda x: x.conj().imag, complex_leaf),
    "view_as_complex": (torch.view_as_complex, leaf),
    "bits as int": (lambda x: x.view(torch.int32), torch.randn),
    "bits as bytes": (lambda x: x.view(torch.uint8), torch.randn),
    "bits as double": (lambda x: x.view(torch.float64), torch.randn),
}


@pytest.mark.parametrize(("view", "make"), REINTERPRETED.values(), ids=REINTERPRETED)
def test_OUT_10_views_of_another_dtype(view, make):
    assert_same(lambda x: (view(x), x * 2, view(x * 3)), lambda: (make(3, 2),))


# OUT-11: structure


class Pair(typing.NamedTuple):
    left: torch.Tensor
    right: object


STRUCTURES = {
    "tensor": lambda x: x * 2,
    "tuple": lambda x: (x * 2, x * 3),
    "one-tuple": lambda x: (x * 2,),
    "list": lambda x: [x * 2, x * 3],
    "dict": lambda x: {"b": x * 2, "a": None, "c": 3, "d": "text"},
    "dict by number": lambda x: {1: x * 2, 0: x * 3},
    "nested": lambda x: ([x * 2, (x * 3, {"k": [x * 4]})], [], {}, ()),
    "OrderedDict": lambda x: collections.OrderedDict(b=x * 2, a=x * 3),
    "defaultdict": lambda x: collections.defaultdict(list, a=[x * 2]),
    "namedtuple": lambda x: Pair(x * 2, [x * 3]),
    "torch's own": lambda x: (x * 2).max(dim=0),
    "size": lambda x: (x * 2, x.shape),
    "values": lambda x: (x * 2, 1, 2.5, True, None, "text", x.dtype, x.device),
    "None": lambda x: None,
    "only values": lambda x: (x.shape[0], "text"),
    "empty": lambda x: (),
}


@pytest.mark.parametrize("build", STRUCTURES.values(), ids=STRUCTURES)
def test_OUT_11_containers_keep_their_type_and_order(build):
    assert_same(lambda x: build(x), lambda: (leaf(3),), calls=2)


@same_as_eager
def test_OUT_11_a_returned_container_is_new_at_each_call(wrap):
    f = wrap(lambda x: [x * 2])
    first = f(torch.ones(2))
    first.append("mine")
    return f(torch.ones(2))


def test_OUT_11_keywords_bind_by_name():
    orders = [lambda: {"a": leaf(2), "b": leaf(2)}, lambda: dict(reversed([("b", leaf(2)), ("a", leaf(2))]))]
    for keywords in orders:
        assert_same(lambda a, b: a - b, tuple, kwargs=keywords)


@same_as_eager
def test_OUT_11_keywords_in_another_order_on_the_same_object(wrap):
    f = wrap(lambda a, b: a - b)
    five, three = torch.tensor(5.0), torch.tensor(3.0)
    return f(a=five, b=three), f(b=three, a=five), f(five, b=three), f(five, three)


# OUT-12: sizes of outputs


def test_OUT_12_sizes_of_outputs_follow_sizes_of_inputs():
    def f(x):
        return x[: x.shape[0] // 2] * x.shape[0], x.shape[0], x.new_zeros(x.shape[0] + 1)

    assert_same(f, [lambda: (leaf(4),), lambda: (leaf(6),), lambda: (leaf(0),), lambda: (leaf(1),)], calls=2)


@pytest.mark.parametrize("writes", [False, True])
def test_OUT_12_strides_of_a_tensor_without_elements(writes):
    def f(x):
        y = x[:, 2:].sin()
        if writes:
            x.zero_()
        return y + 1.5, (y + 1.5).stride()

    assert_same(f, lambda: (torch.rand(0, 3),), calls=2)


def test_OUT_12_strides_of_a_tensor_without_elements_that_is_written_through_a_view():
    def f(x):
        y = (x * 2).movedim(0, -1)
        y.ravel().copy_(y.ravel() + 1)
        return y, y.stride()

    assert_same(f, lambda: (leaf(0, 3),), calls=2)


def test_OUT_12_strides_of_dimensions_of_size_1():
    """The kernel gives the sum another stride than torch's fake tensors say: nothing can be written over it."""

    def f(x):
        x.zero_()
        y = x.t() + 1
        return y.reciprocal() * 2, y.stride()

    assert_same(f, lambda: (torch.rand(3, 1),), calls=2)


class Unkeyed:
    """A container that is registered without keys."""

    def __init__(self, left, right):
        self.left, self.right = left, right


torch.utils._pytree.register_pytree_node(Unkeyed, lambda p: ([p.left, p.right], None), lambda items, _: Unkeyed(*items))


def test_a_container_registered_without_keys_is_taken_and_given():
    twice = fg.compile(lambda pair: Unkeyed(pair.left * 2, [pair.right, 3]), backend="eager", dynamic=None)
    for length in (2, 3, 4):
        left, right = torch.randn(length, requires_grad=True), torch.randn(length)
        found = twice(Unkeyed(left, right))
        assert type(found) is Unkeyed
        assert torch.equal(found.left, left * 2)
        assert found.right[0] is right
        assert found.right[1] == 3
        (gradient,) = torch.autograd.grad(found.left.sum(), left)
        assert torch.equal(gradient, torch.full((length,), 2.0))
    program = fg.capture(lambda p: p.left + p.right, Unkeyed(left, right))
    assert [one.name for one in program.signature.inputs_of("input")] == ["p.0", "p.1"]


@dataclasses.dataclass(frozen=True)
class Part:
    value: torch.Tensor
    count: int = 3


@dataclasses.dataclass
class Whole:
    logits: torch.Tensor
    part: Part
    rest: object = None

    def __post_init__(self):
        self.double = self.logits * 2


def test_a_dataclass_that_the_function_makes_is_returned():
    def function(x):
        return Whole(x * 2, Part((x * x).sum()), [Part(x, 4), {"x": x}])

    x = leaf(3)
    twice, expected = fg.compile(function, backend="eager"), function(x)
    for _ in range(2):
        found = twice(x)
        assert [type(one) for one in (found, found.part, found.rest[0])] == [Whole, Part, Part]
        assert (found.part.count, found.rest[0].count) == (3, 4)
        assert found.rest[1]["x"] is x
        for one, wanted in [(found.logits, expected.logits), (found.double, expected.double)]:
            assert torch.equal(one, wanted)
        assert torch.equal(torch.autograd.grad(found.part.value, x)[0], 2 * x)


KEPT = Part(torch.ones(3))


def returns_one_twice(x):
    part = Part(x * 2)
    return Whole(x, part, [part])


def test_a_dataclass_that_others_hold_is_refused():
    with pytest.raises(fg.CaptureError, match="the function returns a Part as result"):
        fg.compile(lambda x: (x * 2, KEPT), backend="eager")(torch.ones(3))


def test_a_dataclass_that_is_returned_twice_is_one():
    found = fg.compile(returns_one_twice, backend="eager")(torch.ones(3))
    assert found.rest[0] is found.part


def test_a_compiled_function_says_what_it_is():
    function = fg.compile(returns_one_twice, backend="eager")
    assert repr(function) == "<compiled function returns_one_twice: 0 programs>"


@pytest.mark.parametrize(
    "make", [lambda: torch.rand(3).expand(2, 3), lambda: torch.rand(2, 3)], ids=["expanded", "dense"]
)
def test_a_view_of_a_custom_function_that_was_written_is_not_returned(make):
    """Eager refuses to use it; made again over memory that overlaps itself, it was a tensor without a gradient."""

    def f(x):
        y = ViewWithOwnGradient.apply(x)
        with torch.no_grad():
            y.clamp_(-0.5, 0.5)
        return y

    with pytest.raises(RuntimeError, match="custom Function"):
        f(make().requires_grad_()[1::2]).grad_fn
    with pytest.raises(fg.CaptureError, match=r"view f32.* that a custom Function has made"):
        compiled(f)(make().requires_grad_()[1::2])


def test_a_function_of_a_generator_alone():
    seeded = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    function = fg.compile(lambda generator: torch.rand(3, generator=generator), backend="eager")
    assert torch.equal(function(seeded[0]), torch.rand(3, generator=seeded[1]))


def _replaced(x):
    y = x * 3
    y.data = y.data * 2
    return y


LOOKS = {
    "itself and its detach": lambda y: (y, y.detach()),
    "two detaches": lambda y: (y.detach(), y.detach()[1:]),
    "itself and its data": lambda y: (y, y.data),
    "all": lambda y: (y, y.data, y.detach(), y.data),
}


@pytest.mark.parametrize("looks", LOOKS)
@same_as_eager
def test_results_share_a_version_counter_also_after_new_data(wrap, looks):
    found = []
    results = wrap(lambda x: LOOKS[looks](_replaced(x)))(leaf(4))
    for one in results:
        one.detach().add_(1)
        found.append([other._version for other in results])
    return found
