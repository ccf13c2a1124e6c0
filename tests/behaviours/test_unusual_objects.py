"""Objects that answer for themselves, containers that hold themselves, methods of tensors that were replaced."""

import pytest
import torch

import foregrad as fg


class AnswersEverything:
    """Gives the same for every attribute, also for `__class__` and `__dict__`."""

    def __getattribute__(self, name):
        return [3.0]


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.line = torch.nn.Linear(2, 2)
        self.by = AnswersEverything()

    def forward(self, x):
        return self.line(x) * self.by.anything[0]


def test_an_object_that_answers_for_its_class_is_read():
    model, x = Scaled(), torch.ones(2, 2)
    assert torch.equal(fg.compile(model, backend="eager")(x), model(x))


around = {"by": 3.0}
around["self"] = [around]


def test_a_container_that_holds_itself_is_read():
    def function(x):
        return x * around["self"][0]["by"]

    compiled = fg.compile(function, backend="eager")
    assert compiled(torch.ones(2)).tolist() == [3.0, 3.0]
    around["by"] = 4.0
    assert compiled(torch.ones(2)).tolist() == [4.0, 4.0]
    around["by"] = 3.0


def with_method(monkeypatch, name):
    method = getattr(torch.Tensor, name)
    monkeypatch.setattr(torch.Tensor, name, lambda self, *args: method(self, *args) * 5, raising=False)


@pytest.mark.parametrize(("name", "args"), [("relu", ()), ("add", (1.0,)), ("norm", ()), ("softmax", (0,))])
def test_a_method_of_tensors_that_was_replaced_runs_once(monkeypatch, name, args):
    with_method(monkeypatch, name)

    def function(x):
        return getattr(x, name)(*args)

    x = torch.tensor([1.0, 3.0])
    assert torch.equal(fg.compile(function, backend="eager")(x), function(x))


def test_a_replaced_method_that_captures_work_with_is_refused(monkeypatch):
    with_method(monkeypatch, "view")
    with pytest.raises(fg.CaptureError, match=r"torch.Tensor.view was replaced by .*test_unusual_objects"):
        fg.compile(lambda x: x.view(4), backend="eager")(torch.ones(2, 2))
