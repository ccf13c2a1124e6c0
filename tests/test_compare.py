"""The comparison itself: each kind of wrong program is noticed, and said."""

import pytest
import torch

import foregrad as fg
from tests.compare import assert_same, grads_of, leaf, same_as_eager


class GradientOf(torch.autograd.Function):
    """Doubles, with whatever gradient it is told to have."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


def refuse(x):
    raise ValueError("no")


WRONG = {
    "values": (lambda x: x * 2, lambda x: x * 2.0001, "call.values"),
    "sign of zero": (lambda x: x.detach() * 0.0, lambda x: x.detach() * -0.0, "call.values"),
    "dtype": (lambda x: x * 2, lambda x: (x * 2).double(), "torch.float64"),
    "stride": (lambda x: x * 2, lambda x: (x * 2).t().contiguous().t(), "call.stride"),
    "container": (lambda x: (x * 2,), lambda x: [x * 2], "class 'list'"),
    "keys": (lambda x: {"a": 1, "b": 2}, lambda x: {"b": 2, "a": 1}, "'b', 'a'"),
    "python value": (lambda x: 1, lambda x: True, "class 'bool'"),
    "history": (lambda x: x * 2, lambda x: (x * 2).detach(), "call.requires_grad"),
    "identity": (lambda x: x, lambda x: x.view_as(x), "call is"),
    "sharing": (lambda x: x.t(), lambda x: x.t().clone(), "call.storage"),
    "base": (lambda x: (x * 2)[0], lambda x: x[0] * 2, "call._base"),
    "version": (lambda x: (x * 2).add_(1), lambda x: x * 2 + 1, "call._version"),
    "gradient": (lambda x: x * 2, lambda x: GradientOf.apply(x, 3), "gradients from call"),
    "zero for none": (lambda x: x.detach() * 2, lambda x: x.detach() * 2 + x * 0, "gradient of args[0]"),
    "write": (lambda x: None, lambda x: x.data.mul_(2) and None, "args[0].values"),
    "exception": (refuse, lambda x: x * 2, "ValueError"),
    "message": (refuse, lambda x: [][0], "IndexError"),
    "grad mode": (lambda x: None, lambda x: torch.set_grad_enabled(False) and None, "grad mode"),
    "generator": (lambda x: None, lambda x: torch.rand(1) and None, "generator"),
}


@pytest.mark.parametrize(("fn", "wrong", "word"), WRONG.values(), ids=WRONG)
def test_a_wrong_program_is_noticed(monkeypatch, fn, wrong, word):
    monkeypatch.setattr(fg, "compile", lambda target, **_: wrong)
    with pytest.raises(AssertionError) as caught:
        assert_same(fn, lambda: (leaf(2, 2),))
    assert "differs from eager" in str(caught.value)
    assert word in str(caught.value)


def test_a_wrong_story_is_noticed(monkeypatch):
    @same_as_eager
    def story(wrap):
        x = leaf(2)
        wrap(lambda x: x * 2)(x).sum().backward()
        return grads_of(x)

    monkeypatch.setattr(fg, "compile", lambda target, **_: lambda x: GradientOf.apply(x, 3))
    with pytest.raises(AssertionError, match="story"):
        story()


def test_an_unexpected_exception_is_the_cause_of_the_failure(monkeypatch):
    monkeypatch.setattr(fg, "compile", lambda target, **_: refuse)
    with pytest.raises(AssertionError) as caught:
        assert_same(lambda x: x * 2, lambda: (leaf(2),))
    assert isinstance(caught.value.__cause__, ValueError)
