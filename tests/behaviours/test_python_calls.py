"""`fg.python`: functions that run at each call, on real tensors."""

import dataclasses
from contextlib import suppress

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from tests.compare import BACKEND, also_compiled, compiled


@also_compiled
def test_it_runs_at_each_call_on_the_values_of_that_point():
    seen = []
    log = fg.python(lambda name, value: seen.append((name, value.tolist())))

    def function(x):
        y = x * 2
        log("before", y)
        y.add_(1)
        log("after", value=y)
        return y

    expected, f = [], compiled(function)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((2,), value, requires_grad=True)
        f(x).sum().backward()
        assert x.grad.tolist() == [2.0, 2.0]
        expected += [("before", [2 * value] * 2), ("after", [2 * value + 1] * 2)]
    assert seen == expected
    assert len(f.captures) == 1


def test_it_runs_once_in_a_call_that_is_captured_on_a_way_that_data_choose():
    seen = []
    log = fg.python(lambda value: seen.append(value.item()))

    def function(x):
        log(x.sum())
        if x.sum() > 0:
            return x * 2
        log(x.sum() * 10)
        return x

    f = compiled(function)
    for value in (1.0, -1.0, 1.0, -1.0):
        f(torch.tensor([value]))
    assert seen == [1.0, -1.0, -10.0, 1.0, -1.0, -10.0]


def test_a_step_logs_its_loss_as_a_number():
    torch.manual_seed(0)
    model, seen = nn.Linear(2, 1), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    log = fg.python(lambda loss: seen.append(loss))

    @fg.step(model, optimizer, backend=BACKEND)
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        log(loss.item())
        return loss.detach()

    losses = [train(torch.ones(3, 2)).item() for _ in range(4)]
    assert seen == losses


def test_outside_it_is_the_function():
    seen = []
    fg.python(seen.append)(3)
    assert seen == [3]


def test_what_it_returns_is_refused():
    f = compiled(lambda x: (fg.python(lambda y: y.numpy())(x), x * 2)[1])
    with pytest.raises(TypeError, match="nothing can use what it returns"):
        f(torch.ones(2))
    with pytest.raises(TypeError, match="takes a function"):
        fg.python(3)


def test_in_a_backward_it_is_refused():
    def function(x):
        y = x * 2
        y.register_hook(lambda g: fg.python(print)(g))
        return y

    out = compiled(function)(torch.ones(2, requires_grad=True))
    with pytest.raises(fg.CaptureError, match="inside a backward"):
        out.sum().backward()


def test_what_python_does_beside_is_named_refused_or_let_pass(recwarn):
    def function(x):
        print("called")
        return x * 2

    with pytest.raises(fg.CaptureError, match="does in Python what its program would not repeat"):
        compiled(function, python="error")(torch.ones(2))
    compiled(function, python="allow")(torch.ones(2))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="does in Python what its program does not repeat"):
        compiled(function)(torch.ones(2))
    with pytest.raises(ValueError, match="python is"):
        fg.compile(function, python="no")


def test_a_refused_side_effect_is_taken_back():
    seen = []

    def function(x):
        seen.append(1)
        return x * 2

    with pytest.raises(fg.CaptureError, match="would not repeat"):
        compiled(function, python="error")(torch.ones(2))
    assert seen == []


class Box:
    def __init__(self, t, k=1):
        self.t, self.k = t, k


@dataclasses.dataclass
class Metrics:
    loss: torch.Tensor
    count: int


@pytest.mark.parametrize("make", [Box, Metrics], ids=["object", "dataclass"])
def test_a_new_object_holds_the_tensors_of_each_call(make):
    seen = []
    log = fg.python(lambda one: seen.append((vars(one)[next(iter(vars(one)))].tolist(), list(vars(one).values())[1])))

    def function(x):
        log(make(x * 2, 3))
        return x + 1

    compiled = fg.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        compiled(torch.tensor([value]))
    assert seen == [([2.0], 3), ([4.0], 3), ([6.0], 3)]
    assert len(compiled.captures) == 1


def test_an_object_among_the_arguments_is_given_as_it_is_at_that_point():
    seen = []
    log = fg.python(lambda box: seen.append((box.t.tolist(), box.k)))

    def function(box, x):
        box.k += 1
        log(box)
        box.t = box.t * x
        box.k += 1
        return box.t

    compiled = fg.compile(function, backend="eager")
    for value in (1.0, 2.0):
        box = Box(torch.tensor([value]))
        compiled(box, torch.ones(1) * 3)
        assert (box.t.tolist(), box.k) == ([value * 3], 3)
    assert seen == [([1.0], 2), ([2.0], 2)]


def test_sizes_that_vary_are_those_of_the_call():
    seen = []
    log = fg.python(lambda *sizes: seen.append(sizes))

    def function(x):
        log(x.shape[0], x.shape)
        return x + 1

    compiled = fg.compile(function, backend="eager", dynamic=True)
    for size in (3, 4, 5, 4):
        compiled(torch.ones(size))
    assert seen == [(size, torch.Size([size])) for size in (3, 4, 5, 4)]


def test_containers_are_new_in_each_call():
    seen = []

    def grow(numbers, texts):
        numbers.add(len(numbers))
        texts.append("a")
        seen.append((len(numbers), len(texts)))

    log = fg.python(grow)

    def function(x):
        log(set(), ["b"])
        return x + 1

    compiled = fg.compile(function, backend="eager")
    for _ in range(3):
        compiled(torch.ones(1))
    assert seen == [(1, 2)] * 3


def test_what_was_there_before_is_refused_where_it_would_be_a_copy():
    history = [1.0]
    log = fg.python(lambda kept, value: kept.append(value.item()))

    def function(x):
        log(history, x.sum())
        return x

    with pytest.raises(fg.CaptureError, match="list, which was there before"):
        fg.compile(function, backend="eager")(torch.ones(1))


def test_what_could_hide_a_tensor_is_refused():
    log = fg.python(lambda function: function())
    with pytest.raises(fg.CaptureError, match="function, which the function has made"):
        fg.compile(lambda x: (log(lambda: x), x)[1], backend="eager")(torch.ones(1))


def test_an_object_that_was_there_before_is_itself():
    class Meter:
        total = 0.0

    meter = Meter()
    log = fg.python(lambda meter, value: setattr(meter, "total", meter.total + value.item()))

    def function(x):
        log(meter, x.sum())
        return x

    compiled = fg.compile(function, backend="eager")
    for value in (1.0, 2.0):
        compiled(torch.tensor([value]))
    assert meter.total == 3.0
    assert len(compiled.captures) == 1


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_what_a_checkpoint_computes_again_is_not_told_again(use_reentrant):
    seen = []
    log = fg.python(lambda value: seen.append(value.item()))

    def block(x):
        log(x.sum())
        return x.sin()

    compiled = fg.compile(lambda x: checkpoint(block, x, use_reentrant=use_reentrant).sum(), backend="eager")
    for value in (1.0, 2.0):
        x = torch.tensor([value], requires_grad=True)
        compiled(x).backward()
        assert torch.equal(x.grad, x.detach().cos())
    assert seen == [1.0, 2.0]


def test_a_tensor_of_vmap_is_refused():
    log = fg.python(lambda value: None)
    with pytest.raises(fg.CaptureError, match=r"tensor of torch\.func"):
        fg.compile(lambda x: torch.vmap(lambda y: (log(y), y)[1])(x), backend="eager")(torch.ones(2))


def test_what_comes_before_an_error_is_told():
    seen = []
    log = fg.python(lambda value: seen.append(value.item()))

    def function(x):
        loss = x.square().mean()
        log(loss)
        if not torch.isfinite(loss):
            raise FloatingPointError("diverged")
        return loss

    f = compiled(function)
    for value in (1.0, 2.0, float("inf"), 3.0, float("inf")):
        with suppress(FloatingPointError):
            f(torch.tensor([value]))
    assert seen == [1.0, 4.0, float("inf"), 9.0, float("inf")]
