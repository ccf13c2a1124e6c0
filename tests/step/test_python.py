"""What a step does in Python beside its tensors and numbers is said, with its name, old and new value."""

import collections
import logging
import warnings

import pytest
import torch
from torch import nn

import foregrad as fg

log = logging.getLogger("somebody")


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.calls, self.seen, self.is_warm = 0, [], False

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.is_warm = True
        return super().forward(x)


def counting(python):
    model = Counting()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @fg.step(model, optimizer, backend="eager", python=python)
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return model, train


def test_changes_are_named_once_with_old_and_new_value():
    model, train = counting("warn")
    with pytest.warns(UserWarning, match="does in Python") as caught:
        _ = [train(torch.ones(2, 3)) for _ in range(4)]
    (text,) = [str(w.message) for w in caught]
    assert "model.calls was 0, is 1" in text
    assert "model.seen was [], is [1]" in text
    assert "model.is_warm was False, is True" in text
    assert model.calls == len(model.seen) == len(train.captures)


def test_changes_can_be_refused():
    _, train = counting("error")
    with pytest.raises(fg.CaptureError, match=r"model.calls was 0, is 1[\s\S]*test_python.py:\d+"):
        train(torch.ones(2, 3))


def test_changes_can_be_allowed():
    _, train = counting("allow")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(torch.ones(2, 3))
        train(torch.ones(2, 3))


def test_python_takes_one_of_three_words():
    with pytest.raises(ValueError, match="warn"):
        fg.step(python="never")


def test_prints_log_lines_and_variables_are_named(capsys):
    model = nn.Linear(3, 2)
    count, history = 0, []

    @fg.step(model, backend="eager")
    def train(x):
        nonlocal count
        count += 1
        history.append("step")
        print("a step")
        log.warning("a line")
        return model(x).sum()

    with pytest.warns(UserWarning, match="does in Python") as caught:
        _ = [train(torch.ones(2, 3)) for _ in range(3)]
    (text,) = [str(w.message) for w in caught]
    assert "print at" in text
    assert "test_python.py" in text
    assert "a log line of somebody at" in text
    assert "count was 0, is 1" in text
    assert "history was [], is ['step']" in text
    assert capsys.readouterr().out == "a step\n"
    assert (count, history) == (1, ["step"])


def test_a_tensor_put_into_a_list_is_refused():
    model = nn.Linear(3, 2)
    model.seen = []

    @fg.step(model, backend="eager")
    def train(x):
        model.seen.append(model(x))
        return model.seen[-1].sum()

    with pytest.raises(fg.CaptureError, match=r"puts a tensor into model.seen"):
        train(torch.ones(2, 3))
    assert model.seen == []


def test_numbers_of_the_optimizer_can_be_kept_on_a_module():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model.last_rate = 0.0

    @fg.step(model, optimizer, backend="eager")
    def train(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        model.last_rate = optimizer.param_groups[0]["lr"] * 2
        return loss, optimizer.param_groups[0]["lr"]

    for rate in (0.5, 0.25, 0.125):
        optimizer.param_groups[0]["lr"] = rate
        assert train(torch.ones(2, 3))[1] == rate
        assert model.last_rate == 2 * rate


class Meter:
    def __init__(self):
        self.total, self.recent = 0.0, collections.deque(maxlen=2)

    def update(self, value):
        self.total += value
        self.recent.append(value)


def test_a_number_that_depends_on_data_is_stored_in_no_object():
    """A meter would keep a number that has no value."""
    model, meter = nn.Linear(3, 2), Meter()

    @fg.step(model, backend="eager")
    def train(x):
        loss = model(x).sum()
        meter.update(loss.item())
        return loss.detach()

    with pytest.raises(fg.CaptureError, match=r"number that depends on data[\s\S]*at .*test_python"):
        train(torch.ones(2, 3))
    assert meter.total == 0.0
    assert not meter.recent


def test_a_number_that_depends_on_data_is_put_into_a_dict_that_was_given():
    model = nn.Linear(3, 2)

    @fg.step(model, backend="eager")
    def train(x, out):
        out["loss"] = model(x).sum().item()

    for factor in (1, 2):
        x, out = torch.ones(2, 3) * factor, {}
        train(x, out)
        assert out == {"loss": model(x).sum().item()}


def test_a_number_that_depends_on_data_is_put_into_no_list():
    model, history = nn.Linear(3, 2), []

    @fg.step(model, backend="eager")
    def train(x):
        history.append(model(x).sum().item())

    with pytest.raises(fg.CaptureError, match="into history, or a number that depends on data"):
        train(torch.ones(2, 3))
    assert history == []
