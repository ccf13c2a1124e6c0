"""Python in backward: hooks and custom Functions are recorded; what they would leave outside is refused by backward."""

import collections

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled

KEPT, COUNTS, SEEN = [], {"n": 0}, collections.deque()


class Holder:
    def __init__(self):
        self.gradient, self.calls = None, 0

    def keep(self, gradient):
        self.gradient = gradient

    def count(self, gradient):
        self.calls += 1


HOLDER = Holder()


def counts(gradient):
    COUNTS["n"] += 1
    return gradient * COUNTS["n"]


HOOKS = {
    "a list in a lambda": lambda gradient: KEPT.append(gradient),
    "the method of a list": KEPT.append,
    "the method of a deque": SEEN.append,
    "an attribute": HOLDER.keep,
    "a counter of an object": HOLDER.count,
    "a counter in a dict": counts,
}


@pytest.mark.parametrize("layout", ["as the result", "expanded"])
@pytest.mark.parametrize("how", HOOKS)
def test_a_hook_that_leaves_something_outside_is_refused_by_backward(how, layout):
    def f(x):
        y = x * 2
        y.register_hook(HOOKS[how])
        return y.sin()

    x = torch.ones(3, requires_grad=True)
    y = compiled(f)(x)
    with pytest.raises(fg.CaptureError, match=r"a backward changes .* outside[\s\S]*at .*test_python_in_backward"):
        y.backward(torch.ones(3) if layout == "as the result" else torch.ones(1).expand(3))
    assert (KEPT, COUNTS, len(SEEN)) == ([], {"n": 0}, 0)
    assert (HOLDER.gradient, HOLDER.calls) == (None, 0)


def test_a_module_hook_that_keeps_gradients_is_refused_by_backward():
    kept, model = [], nn.Sequential(nn.Linear(3, 3))
    model[0].register_full_backward_hook(lambda module, inward, outward: kept.append(outward[0]))
    y = compiled(model)(torch.ones(2, 3, requires_grad=True))
    with pytest.raises(fg.CaptureError, match="a backward changes `kept` outside"):
        y.sum().backward()
    assert kept == []


class Counts(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        ctx.factor, ctx.seen = 2.0, []
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.factor, ctx.seen = ctx.factor + 0.0, [*ctx.seen, 1]
        ctx.seen.append(2)
        return gradient * ctx.factor


class CountsOutside(Counts):
    @staticmethod
    def backward(ctx, gradient):
        Counts.calls += 1
        return gradient * 2


@pytest.mark.parametrize("layout", ["as the result", "expanded"])
def test_a_custom_function_may_change_its_own_context(layout):
    x = torch.ones(3, requires_grad=True)
    y = compiled(lambda x: Counts.apply(x))(x)
    y.backward(torch.ones(3) if layout == "as the result" else torch.ones(1).expand(3))
    assert x.grad.tolist() == [2.0] * 3


def test_a_custom_function_that_counts_in_its_class_is_refused_by_backward():
    y = compiled(lambda x: CountsOutside.apply(x))(torch.ones(3, requires_grad=True))
    with pytest.raises(fg.CaptureError, match="calls was 0, is 1"):
        y.sum().backward()
    assert Counts.calls == 0


def test_a_list_of_the_functions_own_may_take_gradients():
    def f(x):
        own = []
        y = x * 2
        y.register_hook(own.append)
        y.register_hook(lambda gradient: gradient * len(own))
        return y.sin()

    ours, theirs = (torch.ones(3, requires_grad=True) for _ in range(2))
    for x, function in ((ours, compiled(f)), (theirs, f)):
        function(x).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_hooks_on_parameters_and_inputs_run_at_each_backward():
    kept, model = [], nn.Linear(3, 3)
    model.weight.register_hook(kept.append)
    call = compiled(model)
    for _ in range(2):
        call(torch.ones(2, 3)).sum().backward()
    assert [one.tolist() for one in kept] == [[[2.0] * 3] * 3] * 2
