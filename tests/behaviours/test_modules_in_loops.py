"""Modules as training loops use them: what a loop keeps on them, and what other libraries put in place of forward."""

import cProfile
import functools
import importlib.util
import sys
import types

import numpy
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.behaviours import changing_code, changing_data, changing_modules  # noqa: F401  they hold the cases
from tests.behaviours.changing import CASES
from tests.compare import compiled


def num_captures(f):
    return len(fg.explain(f).captures)


class Logged(nn.Module):
    """Keeps what a loop appends, as modules of Lightning do."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.outputs, self.metrics, self.epoch, self.trainer = [], {}, 0, types.SimpleNamespace(step=0)

    def forward(self, x):
        return self.fc(x)

    def training_step(self, x):
        loss = self(x).sum()
        self.outputs.append(loss)
        self.metrics[f"loss {len(self.metrics)}"] = float(loss.detach())
        self.epoch += 1
        self.trainer.step += 1
        return loss


def test_what_a_loop_keeps_on_a_module_captures_nothing_anew():
    model = compiled(Logged(), cache=False)
    for _ in range(5):
        model.training_step(torch.ones(2, 3)).backward()
    assert num_captures(model) == 1
    assert len(model.outputs) == len(model.metrics) == model.epoch == 5


def test_what_forward_reads_of_that_captures_anew_and_is_named():
    class Reads(Logged):
        def forward(self, x):
            return self.fc(x) * len(self.outputs)

    torch.manual_seed(0)
    module = Reads()
    model = compiled(module, cache=False)
    for _ in range(3):
        x = torch.ones(2, 3)
        torch.testing.assert_close(model(x), module(x))
        module.outputs.append(1.0)
    reasons = [one.reason for one in fg.explain(model).captures]
    assert len(reasons) == 3
    assert all("outputs" in reason for reason in reasons[1:])


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_a_module_of_lightning_is_captured_once():
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.fc, self.outputs = nn.Linear(3, 3), []

        def forward(self, x):
            return self.fc(x)

        def training_step(self, batch, index):
            loss = self(batch).sum()
            self.outputs.append(loss)
            return loss

    model = compiled(Model(), cache=False)
    for index in range(5):
        model.training_step(torch.ones(2, 3), index).backward()
    assert num_captures(model) == 1


def in_half_precision(forward):
    """What `accelerate` puts in place of forward: in half precision inside, in single precision outside."""

    @functools.wraps(forward)
    def run(*args, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return forward(*args, **kwargs).float()

    return run


def prepared(model):
    """A model as `accelerate`'s `prepare` leaves it."""
    model._original_forward = model.forward
    function = getattr(model.forward, "__func__", None)
    if function is None:
        model.forward = in_half_precision(model.forward)
    else:
        model.forward = types.MethodType(in_half_precision(function), model)
    return model


@pytest.mark.parametrize("order", ["before", "after"])
def test_a_forward_that_was_replaced_on_the_instance_is_compiled(order):
    def made():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))

    expected = prepared(made())
    model = compiled(prepared(made()), cache=False) if order == "before" else prepared(compiled(made(), cache=False))
    for _ in range(2):
        x, y = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
        result, reference = model(x), expected(y)
        torch.testing.assert_close(result, reference, rtol=1e-2, atol=1e-2)
        result.sum().backward()
        reference.sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-2, atol=1e-2)
    assert num_captures(model) == 1
    assert "AddmmBackward" not in str(result.grad_fn)


def test_a_forward_that_is_taken_away_again():
    model = compiled(nn.Linear(3, 3), cache=False)
    x = torch.ones(2, 3)
    before = model(x)
    model.forward = lambda x: x * 2
    assert torch.equal(model(x), x * 2)
    assert torch.equal(model.forward(x), x * 2)
    del model.forward
    assert torch.equal(model(x), before)
    with pytest.raises(AttributeError):
        del model.forward


def test_every_reason_names_what_changed():
    unnamed = []
    for name, make in CASES.items():
        story = make()
        call = compiled(next(story), cache=False)
        for _ in story:
            call(torch.linspace(-1, 1, 6).reshape(2, 3))
        call(torch.linspace(-1, 1, 6).reshape(2, 3))
        unnamed += [
            (name, one.reason)
            for one in fg.explain(call).captures[1:]
            if " was " not in one.reason and "other" not in one.reason
        ]
    assert not unnamed


def test_what_cannot_be_checked_is_named_as_frozen():
    numbers, table = iter([2.0, 3.0]), numpy.ones((1 << 18) + 1)
    f = compiled(lambda x: x * next(numbers) * table[0], cache=False)
    f(torch.ones(3))
    told = str(fg.explain(f))
    assert "frozen at capture: numbers: a builtins.list_iterator, whose state cannot be compared" in told
    assert "frozen at capture: table: an array of 2097160 bytes" in told


@pytest.mark.parametrize("profile", ["python", "cProfile"])
def test_a_profiler_goes_on_after_a_capture_and_changes_are_seen_under_it(profile):
    events, config = [], types.SimpleNamespace(scale=2.0)
    call = compiled(lambda x: x * config.scale, cache=False)
    profiler = cProfile.Profile()
    if profile == "python":
        sys.setprofile(note := lambda frame, event, arg: events.append(event))
    else:
        profiler.enable()
    try:
        first = call(torch.ones(3))
        found = sys.getprofile()
        config.scale = 3.0
        second = call(torch.ones(3))
    finally:
        sys.setprofile(None)
        profiler.disable()
    assert found is (note if profile == "python" else profiler)
    assert (first.tolist(), second.tolist()) == ([2.0] * 3, [3.0] * 3)
