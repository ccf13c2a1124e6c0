"""Escapes: a tensor without data is left in no object of the user's; where one would be, the capture is refused."""

import collections
import dataclasses
import queue

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled

X = torch.ones(2, 3)


class Keeps(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.acts, self.by_name = nn.Linear(3, 3), [], {"old": 1}
        self.deep = {"a": [{"b": collections.deque()}]}

    def forward(self, x, where="acts"):
        y = self.linear(x)
        if where == "acts":
            self.acts.append(y)
        elif where == "by_name":
            self.by_name["y"] = y
        else:
            self.deep["a"][0]["b"].append(y)
        return y.sin()


@pytest.mark.parametrize("where", ["acts", "by_name", "deep"])
def test_a_tensor_in_a_container_of_a_module_is_refused(where):
    model = Keeps()
    with pytest.raises(fg.CaptureError, match=rf"stores a tensor f32\[2, 3\] in `.*{where}"):
        compiled(model)(X, where)
    assert (model.acts, model.by_name) == ([], {"old": 1})


def test_the_refusal_names_the_line_that_made_the_tensor():
    with pytest.raises(fg.CaptureError, match=r"test_escapes.*in forward"):
        compiled(Keeps())(X)


def test_a_forward_hook_that_stores_features_is_refused():
    model, features = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), {}
    model[0].register_forward_hook(lambda module, args, output: features.update(first=output))
    with pytest.raises(fg.CaptureError, match="stores a tensor"):
        compiled(model)(X)
    assert features == {}
    model(X)
    assert features["first"].shape == (2, 3)


@dataclasses.dataclass
class Box:
    t: object = None
    inner: object = None


class Slotted:
    __slots__ = ("t",)


def put_in_attribute(x, box):
    box.t = x * 2
    return x + 1


def put_deeper(x, box):
    box.inner = {"list": [x * 2]}
    return x + 1


@pytest.mark.parametrize("kind", [Box, Slotted])
def test_a_tensor_in_an_argument_is_put_there_at_each_call(kind):
    call = compiled(put_in_attribute)
    for factor in (1, 2):
        box = kind()
        call(X * factor, box)
        assert torch.equal(box.t, X * factor * 2)
    assert len(call.captures) == 1


def test_a_tensor_in_a_container_in_an_argument_is_put_there_at_each_call():
    call = compiled(put_deeper)
    for factor in (1, 2):
        box = Box()
        call(X * factor, box)
        assert torch.equal(box.inner["list"][0], X * factor * 2)
    assert len(call.captures) == 1


def test_a_tensor_in_an_argument_that_holds_a_module_is_refused():
    box = Box(inner=nn.Linear(3, 3))
    with pytest.raises(fg.CaptureError, match=r"in `box\.t"):
        compiled(put_in_attribute)(X, box)
    assert box.t is None


class Store:
    def __init__(self):
        self.queue, self.seen = queue.Queue(), set()


STORE = Store()


def helper(y):
    STORE.queue.put(y)


def test_a_tensor_in_a_queue_that_a_helper_fills_is_refused():
    def f(x):
        helper(x * 2)
        return x + 1

    with pytest.raises(fg.CaptureError, match="STORE"):
        compiled(f)(X)
    STORE.queue = queue.Queue()


def test_what_the_function_drops_is_no_escape():
    """Objects that it makes itself, in cycles too, hooks and contexts of autograd hold tensors as they like."""

    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x * 2
            return x * 3

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.kept

    def f(x):
        box = Box()
        box.t, box.inner = x * 2, box
        y = box.t.sin()
        y.register_hook(lambda gradient: gradient * box.t)
        return Scales.apply(y)

    ours, theirs = X.clone().requires_grad_(), X.clone().requires_grad_()
    for function, x in ((compiled(f), ours), (f, theirs)):
        function(x).sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_attributes_of_modules_are_set_at_each_call():
    class Last(nn.Module):
        def forward(self, x):
            self.last = x * 2
            return x + 1

    model = compiled(Last())
    for value in (1.0, 5.0):
        model(torch.full((2,), value))
        assert model.last.tolist() == [2 * value] * 2
