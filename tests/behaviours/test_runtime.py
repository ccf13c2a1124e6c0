"""A call: arguments freed, generated code, errors at their time, grad and inference paths (RT-1 to RT-5)."""

import ast
import gc
import linecache
import weakref

import pytest
import torch

import foregrad as fg
from tests.compare import also_compiled, assert_same, compiled, leaf, only_with_eager, same_as_eager

# RT-1: arguments are freed when eager frees them


def alive_after(f, *, backward):
    """Whether an argument that only the call knows lives on after it: before backward, and after."""
    gc.collect()
    x = leaf(4)
    argument = x * 1
    ref = weakref.ref(argument)
    out = f(argument)
    del argument
    before = ref() is not None
    if backward:
        out.sum().backward()
    return before, ref() is not None


FREED = {
    "not needed by backward": lambda x: x * 2,
    "saved for backward": lambda x: x.sin(),
    "only a result of it is saved": lambda x: (x * 2).exp(),
}


@pytest.mark.parametrize("f", FREED.values(), ids=FREED)
@pytest.mark.parametrize("grad", [True, False])
def test_RT_1_an_argument_is_freed_when_eager_frees_it(f, grad):
    g = compiled(f)
    with torch.set_grad_enabled(grad):
        alive_after(g, backward=grad)
        assert not alive_after(g, backward=grad)[1]
        if grad and f is FREED["not needed by backward"]:
            assert not alive_after(g, backward=False)[0]


@torch.library.custom_op("foregrad_tests::count_alive", mutates_args=())
def count_alive(x: torch.Tensor) -> torch.Tensor:
    """How many tensors of this size Python holds at this point of the call."""
    return torch.tensor(sum(type(o) is torch.Tensor and o.shape == x.shape for o in gc.get_objects()))


@count_alive.register_fake
def _(x):
    return torch.empty((), dtype=torch.int64)


@only_with_eager("inputs of a fused loop live until it ends")
def test_RT_1_intermediates_are_freed_during_the_call():
    def chain(x):
        for _ in range(20):
            x = x.sin() * 2
        return count_alive(x), x

    f = compiled(chain)
    f(torch.ones(1237))
    assert f(torch.ones(1237))[0] <= chain(torch.ones(1237))[0] + 1


# RT-2: generated wrapper


def test_RT_2_the_generated_code_can_be_read():
    for name in [name for name in linecache.cache if "foregrad" in name]:
        del linecache.cache[name]  # the same text has the same name
    compiled(lambda x: x.sin() * 2)(leaf(3)).sum().backward()
    ours = [name for name in linecache.cache if "foregrad" in name]
    assert ours
    for name in ours:
        ast.parse("".join(linecache.getlines(name)))


def test_RT_2_the_wrapper_gives_the_same_at_every_call():
    def f(x, w):
        x.mul_(w)
        y = x * 2
        return y.t(), x[0], y, w

    assert_same(f, lambda: (leaf(2, 3).clone(), leaf(2, 3)), calls=5)


# RT-3: custom operators


@torch.library.custom_op("foregrad_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@double.register_fake
def _(x):
    return torch.empty_like(x)


double.register_autograd(lambda ctx, g: g * 2)


@torch.library.custom_op("foregrad_tests::scale_", mutates_args=("x",))
def scale_(x: torch.Tensor, factor: float) -> None:
    x.mul_(factor)


@torch.library.custom_op("foregrad_tests::alias", mutates_args=())
def alias(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1)


@alias.register_fake
def _(x):
    return torch.empty_like(x)


def test_RT_3_a_custom_operator_with_its_own_gradient():
    assert_same(lambda x: double(x.sin()), lambda: (leaf(3),), calls=2)


def test_RT_3_a_custom_operator_that_writes_its_argument():
    def f(x):
        scale_(x, 3.0)
        return x + 1

    # In eager the operator's own Python body bumps the version too, after the operator has; here it is one write.
    assert_same(f, lambda: (torch.randn(3),), calls=2, without=("_version",))


def test_RT_3_a_custom_operator_that_returns_its_argument_gives_no_wrong_answer():
    """Such an operator breaks its contract; saying so is right, and so is doing what eager does."""
    try:
        out = compiled(lambda x: alias(x) * 2)(torch.ones(2))
    except (RuntimeError, fg.ForegradError):
        return
    assert out.tolist() == [2.0, 2.0]


# RT-4: errors of backward belong to backward


class FailsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        raise ValueError("late")


@same_as_eager
def test_RT_4_an_error_in_backward_is_raised_by_backward(wrap):
    out = wrap(lambda x: FailsInBackward.apply(x))(leaf(2))
    with pytest.raises(ValueError, match="late"):
        out.sum().backward()
    return out


@also_compiled
@same_as_eager
def test_RT_4_a_backward_that_fails_does_not_harm_the_forward(wrap):
    f = wrap(lambda x: FailsInBackward.apply(x))
    with torch.no_grad():
        first = f(leaf(2))
    return first, f(leaf(2)), f(torch.ones(2))


def test_RT_4_backward_exists_before_it_is_called():
    program = fg.capture(lambda x: x.sin(), leaf(2))
    targets = [node.target for node in program.backward.graph.nodes]
    assert torch.ops.aten.cos.default in targets


# RT-5: grad and inference paths


@same_as_eager
def test_RT_5_ops_made_of_other_ops_in_inference_mode(wrap):
    """Nothing but the recorder takes them apart there."""
    f = wrap(lambda x: (x.t().contiguous(), x.t().reshape(-1), torch.nn.functional.linear(x, x), x.chunk(2)))
    with torch.inference_mode():
        return f(torch.randn(2, 3))


def test_RT_5_without_grad_there_is_no_history_and_no_backward():
    f = lambda x: (x.sin(), x.t(), x * 2)  # noqa: E731 - the same object under both modes
    with torch.no_grad():
        assert_same(f, lambda: (leaf(2, 2),), calls=2)
    with torch.inference_mode():
        assert_same(f, lambda: (leaf(2, 2),), calls=2)
    assert_same(f, lambda: (torch.randn(2, 2),), calls=2)


def test_RT_5_a_program_without_grad_has_no_tangents():
    signature = fg.capture(lambda x: x.sin(), torch.randn(2)).signature
    assert {item.role for item in signature.inputs} == {"input"}
    assert {item.role for item in signature.outputs} == {"output"}


@same_as_eager
def test_RT_5_inference_tensors_as_arguments(wrap):
    f = wrap(lambda x: x * 2)
    with torch.inference_mode():
        x = torch.ones(2)
    with torch.no_grad():
        first = f(x)
    return first, f(x)
