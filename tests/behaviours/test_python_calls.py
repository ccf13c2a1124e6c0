"""`fg.python`: functions that run at each call, on real tensors."""

import pytest
import torch
from torch import nn

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
