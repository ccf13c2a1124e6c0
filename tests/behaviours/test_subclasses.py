"""SUB: tensors that wrap others (`__tensor_flatten__`). Eager is the reference: types, values, histories, gradients."""

import functools
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import foregrad as fg
from foregrad.torch_private.autograd_graph import parts as memory_parts
from tests.compare import BACKEND, also_compiled, compiled, leaf, refused


def two(*shape, grad=True):
    return TwoTensor(torch.randn(shape), torch.randn(shape)).requires_grad_(grad)


def nested(*shape, grad=True):
    return TwoTensor(two(*shape, grad=False), two(*shape, grad=False)).requires_grad_(grad)


class Grads(tuple):
    """Gradients: their versions are private to the engine."""


def facts(value, is_grad=False):
    """What can be seen of a tensor, and of those that it wraps."""
    if isinstance(value, Grads):
        return [facts(v, is_grad=True) for v in value]
    if isinstance(value, (list, tuple)):
        return [facts(v) for v in value]
    if isinstance(value, dict):
        return {k: facts(v) for k, v in value.items()}
    if not isinstance(value, torch.Tensor):
        return value
    seen = [type(value).__name__, tuple(value.shape), value.stride(), value.dtype, value.requires_grad, value.is_leaf]
    if hasattr(value, "__tensor_flatten__"):
        names, context = value.__tensor_flatten__()
        members = {name: facts(getattr(value, name)) for name in names}
        return [*seen, None if is_grad else value._version, str(context), members]
    return [*seen, value.tolist() if BACKEND == "eager" else Near(value.tolist())]


class Near:
    """The numbers of a tensor, equal to others that differ by no more than the rounding of compiled code."""

    __hash__ = None

    def __init__(self, numbers):
        self.numbers = torch.tensor(numbers)

    def __eq__(self, other):
        return torch.allclose(self.numbers, other.numbers, rtol=1e-4, atol=1e-5, equal_nan=True)

    def __repr__(self):
        return f"Near({self.numbers.tolist()})"


def same_as_eager(story):
    """Run a story with the identity and with `fg.compile`; it returns what is to be the same."""

    @functools.wraps(story)
    def test(*args, **kwargs):
        found = []
        for wrap in (lambda fn: fn, compiled):
            torch.manual_seed(0)
            try:
                found.append(facts(story(wrap, *args, **kwargs)))
            except RuntimeError as error:
                found.append((type(error), str(error).partition(":")[0]))
        assert found[1] == found[0]

    parameters = list(inspect.signature(story).parameters.values())
    test.__signature__ = inspect.Signature(parameters[1:])  # of fixtures that pytest is to give
    return test


@same_as_eager
def test_SUB_1_a_wrapper_goes_in_and_comes_out(wrap):
    a, b = two(2, 3), two(2, 3)
    out = wrap(lambda a, b: (a * b).sin())(a, b)
    out.sum().backward()
    return out, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_1_wrappers_in_wrappers(wrap):
    x = nested(3)
    out = wrap(lambda x: x.exp() * 2)(x)
    out.sum().backward()
    return out, Grads([x.grad])


def test_SUB_1_the_program_holds_plain_tensors_by_the_names_of_members():
    f = compiled(lambda x: x * 2)
    f(nested(2))
    names = [one.name for one in f.captures[0].program.signature.inputs]
    assert names == ["x.a.a", "x.a.b", "x.b.a", "x.b.b", *(f"tangent_0.{m}" for m in ("a.a", "a.b", "b.a", "b.b"))]


@also_compiled
@same_as_eager
def test_SUB_2_dense_times_wrapper_gives_wrapped_gradients_on_both(wrap):
    a, b = two(3), leaf(3)
    out = wrap(lambda a, b: a * b)(a, b)
    out.sum().backward()
    return out, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_1_a_history_outside_goes_on(wrap):
    a, b = two(3), two(3)
    out = wrap(lambda a, b: a * b)(a * 2, b.exp())
    (out * 3).sum().backward()
    return out, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_1_results_without_a_history(wrap):
    x = two(3)
    with torch.no_grad():
        first = wrap(lambda x: x * 2)(x)
    return first, wrap(lambda x: (x > 0, x.detach() * 2))(x)


@same_as_eager
def test_SUB_1_plain_results_of_wrappers(wrap):
    x = two(3)
    plain, whole = wrap(lambda x: (x.a * 2, x * 2))(x)
    whole.sum().backward()
    return plain, Grads([x.grad])


@same_as_eager
def test_SUB_1_containers_and_the_same_tensor_twice(wrap):
    x = two(3)
    out = wrap(lambda x, d: {"one": [x * d["y"]], "same": d["y"]})(x, {"y": x})
    out["one"][0].sum().backward()
    return out, out["same"] is x, Grads([x.grad])


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(two(4, 3, grad=False))
        self.bias = nn.Parameter(torch.randn(4))
        self.register_buffer("offset", two(4, grad=False))

    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias) + self.offset


@also_compiled
@same_as_eager
def test_SUB_1_parameters_and_buffers(wrap):
    model = Scale()
    run, x = wrap(model), torch.randn(2, 3)
    outs = []
    for _ in range(2):
        outs.append(run(x))
        outs[-1].sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return outs, list(model.state_dict().items()), [type(p) for p in model.parameters()]


@same_as_eager
def test_SUB_1_a_parameter_is_read_anew_at_each_call(wrap):
    model = Scale()
    run, x = wrap(model), torch.randn(2, 3)
    run(x)
    model.weight = nn.Parameter(two(4, 3, grad=False))
    model.offset = two(4, grad=False)
    return run(x)


@same_as_eager
def test_SUB_1_closures(wrap):
    weight = two(3)
    out = wrap(lambda x: x * weight)(torch.randn(3))
    out.sum().backward()
    return out, Grads([weight.grad])


# -- writes -------------------------------------------------------------------------------------------------


@same_as_eager
def test_SUB_4_a_write_changes_the_members(wrap):
    x = two(3, grad=False)
    member = x.a
    out = wrap(lambda x: x.mul_(2) + 1)(x)
    return out, x, member


@same_as_eager
def test_SUB_4_a_write_gives_another_history(wrap):
    a, b = two(3), two(3)
    x = a * 2
    out = wrap(lambda x, b: x.mul_(b).sin())(x, b)
    (out.sum() + x.sum() * 3).backward()
    return out, x, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_4_a_write_with_a_history_to_one_without(wrap):
    x, b = two(3, grad=False), two(3)
    wrap(lambda x, b: x.add_(b.exp()))(x, b)
    x.sum().backward()
    return x, Grads([b.grad])


@same_as_eager
def test_SUB_4_a_write_through_a_view(wrap):
    a, b = two(2, 3), two(3)
    x = a * 2
    out = wrap(lambda x, b: x[0].mul_(b) + 1)(x, b)
    (out.sum() + (x * x).sum()).backward()
    return out, x, Grads([a.grad, b.grad])


@also_compiled
@same_as_eager
def test_SUB_4_a_write_to_a_view_of_something_outside(wrap):
    a, b = two(2, 3), two(3)
    x = a * 2
    wrap(lambda v, b: v.mul_(b))(x[0], b)
    (x * x).sum().backward()
    return x, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_4_a_leaf_written_without_gradients(wrap):
    x = two(3)
    with torch.no_grad():
        wrap(lambda x: x.mul_(2))(x)
    x.sum().backward()
    return x, Grads([x.grad])


@same_as_eager
def test_SUB_4_a_leaf_that_needs_a_gradient_cannot_be_written(wrap):
    return wrap(lambda x: x.mul_(2))(two(3))


@same_as_eager
def test_SUB_4_a_result_that_was_written_inside(wrap):
    x = two(3)
    out = wrap(lambda x: x.exp().mul_(x))(x)
    out.sum().backward()
    return out, Grads([x.grad])


@pytest.mark.parametrize("write", ["inputs", "results"])
@same_as_eager
def test_SUB_4_what_was_saved_must_not_be_written_later(wrap, write):
    x = two(3)
    y = x * 1
    out = wrap(lambda y: y.exp() if write == "results" else y * y)(y)
    with torch.no_grad():
        (out if write == "results" else y).mul_(2)
    out.sum().backward()
    return Grads([x.grad])


@same_as_eager
def test_SUB_4_what_was_not_saved_may_be_written_later(wrap):
    x = two(3)
    y = x * 1
    out = wrap(lambda y: y + 1)(y)
    with torch.no_grad():
        y.mul_(2)
        out.mul_(3)
    out.sum().backward()
    return x.grad, y, out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x.t_(), "changes the geometry"),
        (lambda x: x.resize_(1), "changes the geometry"),
        (lambda x: x.detach_(), "detach_"),
        (lambda x: x.requires_grad_(), "requires_grad_"),
        (lambda x: setattr(x, "data", x * 2), "data"),
        (lambda x: setattr(x, "tag", 3), "attribute 'tag'"),
        (lambda x: setattr(x, "a", x.a * 2), "changes a member"),
    ],
)
def test_SUB_4_changes_of_metadata_are_refused(change, says):
    x = two(2, 3, grad=False)
    before = facts(x)
    with pytest.raises(fg.CaptureError, match=says):
        compiled(lambda x: (change(x), x * 2)[1])(x)
    assert facts(x) == before
    assert not hasattr(x, "tag")


def test_SUB_4_writes_to_wrappers_that_share_memory_are_refused():
    x = two(3, grad=False)
    with pytest.raises(fg.CaptureError, match="shares memory"):
        compiled(lambda a, b: a.mul_(2) + b)(x, TwoTensor(x.a, torch.ones(3)))
    out = compiled(lambda a, b: a * 2 + b)(x, TwoTensor(x.a, torch.ones(3)))
    assert facts(out) == facts(x * 2 + TwoTensor(x.a, torch.ones(3)))


# -- views --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [False, True])
@same_as_eager
def test_SUB_4_a_view_of_an_input_is_one(wrap, grad):
    x = two(2, 3, grad=grad)
    y = x * 1
    view, same, rows = wrap(lambda y: (y.t(), y, y.unbind(0)))(y)
    with torch.no_grad():
        y.mul_(2)
    if grad:
        (view * view).sum().backward()
    return view, view._base is y, same is y, [row._base is y for row in rows], rows, Grads([x.grad])


@same_as_eager
def test_SUB_4_a_view_of_an_input_that_is_written(wrap):
    a, b = two(2, 3), two(2, 3)
    x = a * 1
    view = wrap(lambda x, b: (x.t()[0], x.mul_(b))[0])(x, b)
    view.mul_(3)
    (x * x).sum().backward()
    return view, view._base is x, x, Grads([a.grad, b.grad])


@same_as_eager
def test_SUB_4_results_that_are_views_of_each_other(wrap):
    x = two(2, 3)
    y, view = wrap(lambda x: ((y := x * x), y.t()))(x)
    y.mul_(2)
    (view * view).sum().backward()
    return y, view, view._base is y, Grads([x.grad])


@same_as_eager
def test_SUB_4_detached_results(wrap):
    x = two(3)
    y, detached = wrap(lambda x: ((y := x * 2), y.detach()))(x)
    y.sum().backward()
    return y, detached, Grads([x.grad])


# -- gradients ----------------------------------------------------------------------------------------------


@also_compiled
@pytest.mark.parametrize("which", [(0,), (1,), (0, 1), (2,), (0, 2)])
@same_as_eager
def test_SUB_5_a_backward_from_some_of_the_results(wrap, which):
    """torch's own refuses this."""
    x, w = two(3), leaf(3)
    results = wrap(lambda x, w: (x * 2, x * w, w * 3))(x, w)
    torch.autograd.backward([results[i].sum() for i in which])
    return Grads([x.grad, w.grad])


@same_as_eager
def test_SUB_5_gradients_of_other_strides(wrap):
    x = two(2, 3)
    out = wrap(lambda x: x.sin().t())(x)
    out.backward(TwoTensor(torch.ones(2, 3), torch.ones(2, 3)).t())
    out = wrap(lambda x: x.sin().t())(x)
    out.backward(TwoTensor(torch.ones(3, 2), torch.ones(3, 2)))
    return out, Grads([x.grad])


def test_SUB_1_the_memory_of_a_wrapper_is_that_of_its_members_that_are_tensors():
    assert [part.shape for part in memory_parts(measured(3))] == [(3,), (3,)]


def test_SUB_5_a_gradient_of_another_type_is_refused_with_the_name_of_the_result():
    x = two(3)
    out = compiled(lambda x: {"first": x * 2})(x)
    with pytest.raises(fg.BackwardError, match=r"arrives for result\['first'\] is a Tensor .* for a TwoTensor"):
        out["first"].backward(torch.ones(3))
    with pytest.raises(fg.BackwardError, match=r"is a TwoTensor .*for a TwoTensor f32\[3\] \(b: TwoTensor f32\[3\]\)"):
        compiled(lambda x: x * 2)(TwoTensor(torch.ones(3), two(3, grad=False)).requires_grad_()).backward(two(3))


@same_as_eager
def test_SUB_5_a_plain_result_with_a_wrapped_gradient(wrap):
    x, y = leaf(3), two(3)
    out = wrap(lambda x: x.sin() * 2)(x)
    (out * y).sum().backward()
    return Grads([x.grad, y.grad])


@also_compiled
@same_as_eager
def test_SUB_5_retain_graph(wrap):
    x = two(3)
    out = wrap(lambda x: x * x)(x).sum()
    out.backward(retain_graph=True)
    out.backward()
    return Grads([x.grad])


@same_as_eager
def test_SUB_1_derivatives_inside(wrap):
    x = two(3)

    def f(x):
        (g,) = torch.autograd.grad((x * x * x).sum(), x, create_graph=True)
        return g * x

    out = wrap(f)(x)
    out.sum().backward()
    return out, Grads([x.grad])


@same_as_eager
def test_SUB_1_second_derivatives(wrap):
    x, w = two(3), two(3)
    out = wrap(lambda x, w: x * x * w)(x, w)
    first = torch.autograd.grad(out.sum(), (x, w), create_graph=True)
    second = torch.autograd.grad(sum(g.sum() for g in first), (x, w))
    return first, second


# -- guards -------------------------------------------------------------------------------------------------


@same_as_eager
def test_SUB_1_another_type_size_or_flag_is_captured_anew(wrap):
    f = wrap(lambda x: x * 2)
    given = [two(3), two(4), torch.randn(3), nested(3), two(3, grad=False), two(3, 3).t(), two(3) * 2, two(3)]
    return [f(x) for x in given]


def test_SUB_1_one_program_serves_the_same_kind():
    f = compiled(lambda x: x * 2)
    for _ in range(3):
        f(two(3))
    f(two(3, grad=False))
    assert len(fg.explain(f).captures) == 2
    assert "TwoTensor" in fg.explain(f).captures[1].reason


# -- a subclass of one's own --------------------------------------------------------------------------------


class Unit:
    """An opaque member: no tensor, compared by what it says."""

    def __init__(self, name):
        self.name = name

    def __eq__(self, other):
        return isinstance(other, Unit) and self.name == other.name

    __hash__ = None

    def __repr__(self):
        return f"Unit({self.name})"


class Measured(torch.Tensor):
    """A tensor with a unit, a label, and an offset that it does not show; it has no `exp`."""

    @staticmethod
    def __new__(cls, value, offset, unit, label):
        return torch.Tensor._make_wrapper_subclass(cls, value.shape, strides=value.stride(), dtype=value.dtype)

    def __init__(self, value, offset, unit, label):
        self.value, self.offset, self.unit, self.label = value, offset, unit, label

    def __tensor_flatten__(self):
        return ["value", "unit", "offset"], {"label": self.label}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Measured(inner["value"], inner["offset"], inner["unit"], context["label"])

    def __coerce_same_metadata_as_tangent__(self, context, kind=None):
        if kind is torch.Tensor:
            return self.value + self.offset
        return None if kind is not None else Measured(self.value, self.offset, self.unit, context["label"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.exp.default:
            raise NotImplementedError("nothing measured has an exp")
        first = next(a for a in torch.utils._pytree.tree_leaves(args) if isinstance(a, Measured))

        def shown(value):
            return value.value + value.offset if isinstance(value, Measured) else value

        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return Measured(func(first.value), func(first.offset), first.unit, first.label)
        if func is torch.ops.aten.add_.Tensor:
            first.offset.add_(shown(args[1]))
            return first
        args, kwargs = torch.utils._pytree.tree_map(shown, (args, kwargs or {}))
        result = func(*args, **kwargs)
        return Measured(result, torch.zeros_like(result), first.unit, first.label)


def measured(label="x", unit="m", grad=True, size=3):
    return Measured(torch.randn(size), torch.randn(size), Unit(unit), label).requires_grad_(grad)


@same_as_eager
def test_SUB_1_a_type_of_ones_own(wrap):
    x, w = measured(), measured("w")
    out = wrap(lambda x, w: (x * w).sin() * 2)(x, w)
    out.sum().backward()
    return out, Grads([x.grad, w.grad])


@same_as_eager
def test_SUB_1_what_a_tensor_says_of_itself_is_guarded(wrap):
    f = wrap(lambda x: x * 2 if x.label == "x" and x.unit.name == "m" else x.sin())
    given = [measured(), measured("y"), measured(unit="s"), measured(), measured("y")]
    return [f(x) for x in given], 3


def test_SUB_1_each_context_has_one_program():
    f = compiled(lambda x: x * 2)
    for label in ("x", "y", "x", "y"):
        f(measured(label))
    assert [c.reason for c in fg.explain(f).captures][1:] == [
        "x was Measured f32[3] ({'label': 'x'}, unit: Unit(m)) that needs a gradient, leaf, "
        "is Measured f32[3] ({'label': 'y'}, unit: Unit(m)) that needs a gradient, leaf"
    ]


@same_as_eager
def test_SUB_4_a_write_to_one_member(wrap):
    x, w = measured(grad=False), measured("w")
    value, offset = x.value, x.offset
    out = wrap(lambda x, w: x.add_(w) * 2)(x, w)
    (out.sum() + x.sum()).backward()
    return out, x, x.value is value, x.offset is offset, Grads([w.grad])


def test_SUB_1_an_error_of_the_type_itself_comes_through():
    with pytest.raises(NotImplementedError, match="nothing measured has an exp"):
        compiled(lambda x: x.exp())(measured())
    x = measured(grad=False)
    assert facts(compiled(lambda x: x * 2)(x)) == facts(x * 2)


@same_as_eager
def test_SUB_5_a_gradient_is_asked_to_take_the_form_of_the_result(wrap):
    x = measured()
    wrap(lambda x: x.sin())(x).backward(Measured(torch.ones(3), torch.ones(3), Unit("m"), "x"))
    first = x.grad
    x.grad = None
    wrap(lambda x: x.sin())(x).backward(Measured(torch.ones(3), torch.ones(3), Unit("m"), "y"))
    # In eager the label of the gradient comes first, in a captured program that of the result.
    return Grads([first]), [x.grad.value, x.grad.offset]


def test_SUB_5_what_cannot_be_coerced_is_refused():
    x = measured()
    with pytest.raises(
        fg.BackwardError, match=r"for result is a Measured .*Unit\(s\).* captured for a Measured .*Unit\(m"
    ):
        compiled(lambda x: x.sin())(x).backward(Measured(torch.ones(3), torch.ones(3), Unit("s"), "x"))
    with pytest.raises(fg.BackwardError, match="for result is a TwoTensor"):
        compiled(lambda x: x.sin())(x).backward(two(3, grad=False))


@same_as_eager
def test_SUB_5_a_gradient_that_becomes_plain(wrap):
    x = leaf(3)
    (wrap(lambda x: x.sin())(x) * measured()).sum().backward()
    return x.grad.detach() * 1 if type(x.grad) is torch.Tensor else x.grad.value + x.grad.offset


def test_SUB_4_what_an_input_says_of_itself_cannot_be_changed():
    x = measured(grad=False)
    with pytest.raises(fg.CaptureError, match="changes a member or an attribute"):
        compiled(lambda x: (setattr(x, "label", "y"), x * 2)[1])(x)
    assert x.label == "x"


class Unlike(Measured):
    """Never says the same of itself."""

    def __tensor_flatten__(self):
        return ["value", "unit", "offset"], object()


def test_SUB_1_what_a_tensor_says_of_itself_must_be_comparable():
    def says(x):
        return x * 2

    with refused(says, "def says"):
        compiled(says)(Unlike(torch.ones(3), torch.ones(3), Unit("m"), "x"))


def test_SUB_1_a_program_that_takes_a_wrapper_is_not_saved(tmp_path):
    f = compiled(lambda x: x * 2)
    f(two(3))
    with pytest.raises(fg.CannotKeep, match="a TwoTensor, a tensor that wraps others"):
        f.save(tmp_path / "f.fg")


def test_SUB_1_jagged_tensors_are_refused_with_the_line():
    def takes(x):
        return x * 2

    def makes(x):
        return torch.nested.nested_tensor_from_jagged(x, torch.tensor([0, 1, 3])) * 2

    with refused(takes, "def takes"):
        compiled(takes)(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged))
    with refused(makes, "nested_tensor_from_jagged"):
        compiled(makes)(torch.ones(3, 2))


class Named(torch.Tensor):
    """A plain subclass: it wraps nothing."""


def test_subclasses_that_wrap_nothing_are_refused_with_the_line():
    """Inside a program nothing would call their methods, and what comes out would be plain."""
    x = torch.randn(3)

    def doubles(x):
        return x * 2

    double = compiled(doubles)
    assert torch.equal(double(x), x * 2)
    with refused(doubles, "def doubles"):
        double(x.as_subclass(Named))
    assert torch.equal(double(torch.nn.Parameter(x)), x * 2)


# -- distributed tensors ------------------------------------------------------------------------------------


def test_SUB_1_distributed_tensors(tmp_path):
    """Linear, layer norm and embedding, sharded and replicated, on groups of one and of two processes."""
    command, surroundings = (
        [sys.executable, Path(__file__).with_name("sharded.py")],
        {**os.environ, "OMP_NUM_THREADS": "1"},
    )
    started = [
        subprocess.Popen(
            [*command, str(rank), tmp_path / "meet"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=surroundings,
        )
        for rank in range(2)
    ]
    try:
        told = [process.communicate(timeout=400)[0].decode() for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], "\n".join(told)
