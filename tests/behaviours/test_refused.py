"""`refused="eager"`: a function that cannot be captured runs as it is, with one warning that says why."""

import warnings

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import leaf


def branching(x):
    return x * 2 if x.sum() > 0 else x - 1


def test_a_refused_function_runs_as_it_is_and_warns_once():
    function = fg.compile(branching, backend="eager", refused="eager")
    with pytest.warns(UserWarning, match=r"(?s)branching cannot be captured, and runs as it is:.*test_refused.py:\d+"):
        assert torch.equal(function(torch.ones(3)), torch.full((3,), 2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(function(-torch.ones(3)), torch.full((3,), -2.0))
    assert "runs as it is" in str(fg.explain(function))
    assert fg.explain(function).as_json()["refusal"]


def test_it_has_gradients():
    function, x = fg.compile(branching, backend="eager", refused="eager"), torch.ones(3, requires_grad=True)
    with pytest.warns(UserWarning, match="runs as it is"):
        function(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_captures_that_hold_are_used():
    def sometimes(x, asks):
        return branching(x) if asks else x * 3

    function = fg.compile(sometimes, backend="eager", refused="eager")
    function(torch.ones(3), False)
    with pytest.warns(UserWarning, match="runs as it is"):
        function(torch.ones(3), True)
    assert torch.equal(function(torch.ones(3), False), torch.full((3,), 3.0))
    assert len(function.captures) == 1


class Branching(nn.Linear):
    def forward(self, x):
        return branching(super().forward(x))


def test_a_refused_module_runs_with_its_hooks():
    model, seen = Branching(3, 3), []
    model.register_forward_hook(lambda module, args, result: seen.append(result))
    compiled, x = fg.compile(model, backend="eager", refused="eager"), leaf(2, 3)
    with pytest.warns(UserWarning, match="runs as it is"):
        assert torch.equal(compiled(x), model(x))
    assert len(seen) == 2


def test_a_refused_step_trains():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model.weight.detach().clone()

    @fg.step(model, optimizer, backend="eager", refused="eager")
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if loss.isfinite():
            loss.backward()
            optimizer.step()
        return loss.detach()

    with pytest.warns(UserWarning, match="train cannot be captured"):
        train(torch.ones(2, 3))
    train(torch.ones(2, 3))
    assert not torch.equal(model.weight, before)


def test_an_error_of_the_function_itself_is_raised():
    function = fg.compile(lambda x: x @ x, backend="eager", refused="eager")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        function(torch.ones(2, 3))


def test_other_words_are_refused():
    with pytest.raises(ValueError, match='refused is "error" or "eager", not'):
        fg.compile(branching, refused="warn")
