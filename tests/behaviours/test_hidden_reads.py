"""Reads that are easily missed: the order of keyword arguments, slots, and what only a backward of the user's reads."""

import gc
import weakref

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled

A, B = torch.ones(2), torch.full((2,), 5.0)


def weighted(**given):
    return list(given), sum((place + 1) * value for place, value in enumerate(given.values()))


def test_the_order_of_keyword_arguments_counts_where_a_function_can_tell():
    call = compiled(weighted)
    for given in ({"a": A, "b": B}, {"b": B, "a": A}, {"a": A, "b": B}):
        names, value = call(**given)
        assert names == list(given)
        assert torch.equal(value, weighted(**given)[1])
    assert len(call.captures) == 2


def test_the_order_of_keyword_arguments_with_names_does_not_count():
    call = compiled(lambda a, b: a - b)
    assert torch.equal(call(a=A, b=B), call(b=B, a=A))
    assert len(call.captures) == 1


class Slotted(nn.Module):
    __slots__ = ("scale",)

    def __init__(self) -> None:
        super().__init__()
        self.scale = 2.0

    def forward(self, x):
        return x * self.scale


def test_a_slot_of_a_module_is_guarded():
    model = Slotted()
    call = compiled(model)
    assert torch.equal(call(A), 2 * A)
    model.scale = 3.0
    assert torch.equal(call(A), 3 * A)
    assert call.scale == 3.0


class ReadsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, model):
        ctx.save_for_backward(x)
        ctx.model = model
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad * ctx.model.late.sum(), None


class Late(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.late = nn.Linear(2, 2), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return ReadsLate.apply(self.inner(x), self)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_second_gradient_to_what_only_a_backward_reads_is_refused(is_replaced):
    """It was None, without a word; where the tensor was replaced, the backward did not end."""
    model = Late()
    result = compiled(model)(torch.ones(1, 2))
    if is_replaced:
        model.late = nn.Parameter(torch.full((3,), 2.0))
    with pytest.raises(fg.BackwardError):
        torch.autograd.grad(result.square().sum(), model.inner.weight, create_graph=True)


def test_a_first_gradient_through_it_is_right():
    model, x = Late(), torch.ones(1, 2)
    found, expected = (torch.autograd.grad(f(x).square().sum(), model.inner.weight) for f in (compiled(model), model))
    assert torch.equal(*found, *expected)


class Asks(nn.Module):
    """Has no sizes that vary: NumPy would read them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) * float(torch.ones(x.shape[0]).numpy().sum())


def test_a_capture_that_is_refused_keeps_no_model_alive():
    def used():
        model = Asks()
        call = fg.compile(model, backend="eager", cache=False)
        call(torch.ones(4, 3)), call(torch.ones(3, 3))
        return weakref.ref(model)

    models = [used() for _ in range(3)]
    gc.collect()
    assert [model() for model in models] == [None] * 3
