"""`refused="eager"`: what cannot be captured runs as it is, with one warning."""

import warnings

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import BACKEND, compiled


def prints(x):
    print(x)
    return x * 2


def test_it_runs_with_one_warning_that_names_the_line():
    f = compiled(prints, refused="eager")
    with pytest.warns(UserWarning, match=r"(?s)prints is not captured.*reads the data.*test_refused_runs_eagerly"):
        assert f(torch.ones(2)).tolist() == [2.0, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f(torch.zeros(2))
    x = torch.ones(2, requires_grad=True)
    with pytest.warns(UserWarning, match="is not captured"):
        f(x)  # arguments that look otherwise might be captured
    f(x).sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.filterwarnings("ignore:.*is not captured")
def test_what_it_had_done_in_python_is_undone_first():
    class Counts(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            print(x)
            return x * self.calls

    module = compiled(Counts(), refused="eager")
    for number in range(1, 4):
        assert module(torch.ones(2)).tolist() == [number, number]
        assert module.calls == number


def test_where_it_cannot_be_undone_it_is_refused():
    values = iter([1.0, 2.0, 3.0])

    def draws(x):
        y = x * next(values)
        print(y)
        return y

    with pytest.raises(fg.CaptureError):
        compiled(draws, refused="eager")(torch.ones(2))


@pytest.mark.filterwarnings("ignore:.*is not captured")
def test_a_step_runs_as_it_is():
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @fg.step(model, optimizer, backend=BACKEND, refused="eager")
    def train(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        print(loss)
        loss.backward()
        optimizer.step()
        return loss.detach()

    losses = [train(torch.ones(3, 2)).item() for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > losses[-1]


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match="refused is"):
        fg.compile(prints, refused="never")


def test_libraries_are_told_that_nothing_compiles_or_traces():
    """Eager's path is the one that is recorded."""
    told = []

    def asks(x):
        told.append((torch.compiler.is_compiling(), torch.compiler.is_dynamo_compiling(), torch.jit.is_tracing()))
        return x * 2

    compiled(asks)(torch.ones(2))
    assert told[0] == (False, False, False)
