"""The backwards that were asked for are what later processes find, and what a file holds."""

import os
import threading
import time

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import inductor
from foregrad.backends.toolchain import compiler
from foregrad.cache.serialize.cached_calls import FOUND


class Model(nn.Module):
    """Logits and a loss, as language models return them."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x, target):
        logits = self.last(torch.tanh(self.first(x)))
        return logits, nn.functional.cross_entropy(logits, target)


BATCH = torch.ones(5, 4), torch.tensor([0, 1, 2, 0, 1])
USES = {
    "loss": lambda logits, loss: loss,
    "logits": lambda logits, loss: logits.sum(),
    "both": lambda logits, loss: loss + logits.sum(),
    "permuted": lambda logits, loss: (logits.t().contiguous() * torch.arange(15.0).view(3, 5)).sum() + loss,
}


def gradients(model, run, use):
    return torch.autograd.grad(USES[use](*run(*BATCH)), list(model.parameters()))


def assert_as_eager(model, run, use, tolerance=0.0):
    for a, b in zip(gradients(model, model, use), gradients(model, run, use), strict=True):
        assert torch.allclose(a, b, tolerance, tolerance)


def was_traced(run) -> bool:
    return run.captures[0].record.made is not None


@pytest.mark.parametrize("use", USES)
def test_a_backward_that_was_asked_for_is_found_without_tracing(use, tmp_path):
    model = Model()
    assert_as_eager(model, fg.compile(model, backend="eager", cache=tmp_path), use)
    later = fg.compile(model, backend="eager", cache=tmp_path)
    assert_as_eager(model, later, use)
    assert later.origin.how == FOUND
    assert not was_traced(later)


def test_backwards_that_are_asked_for_later_are_added_to_those_before(tmp_path):
    model = Model()
    for use in USES:
        run = fg.compile(model, backend="eager", cache=tmp_path)
        assert_as_eager(model, run, use)
    last = fg.compile(model, backend="eager", cache=tmp_path)
    for use in USES:
        assert_as_eager(model, last, use)
    assert last.origin.how == FOUND
    assert not was_traced(last)


@pytest.mark.skipif(compiler() is None, reason="no compiler")
def test_only_the_backward_that_is_asked_for_is_compiled(tmp_path, monkeypatch):
    from foregrad.backends.inductor import Fuser

    compiled = []
    start = Fuser.start
    monkeypatch.setattr(Fuser, "start", lambda self, graph, name: compiled.append(name) or start(self, graph, name))
    model = Model()
    run = fg.compile(model, backend="inductor", cache=tmp_path)
    run(*BATCH)
    assert compiled == ["forward"]
    assert_as_eager(model, run, "loss", 1e-5)
    assert compiled == ["forward", "backward"]
    later = fg.compile(model, backend="inductor", cache=tmp_path)
    assert_as_eager(model, later, "loss", 1e-5)
    assert compiled == ["forward", "backward"]
    assert not was_traced(later)
    assert_as_eager(model, later, "both", 1e-5)
    assert compiled == ["forward", "backward", "backward"]


@pytest.mark.skipif(compiler() is None, reason="no compiler")
def test_a_program_that_is_traced_again_finds_its_backwards(tmp_path, monkeypatch):
    """As where the sources say too little: the key of each program is what finds its code."""
    from foregrad.backends.inductor import Fuser

    model = Model()
    fg.compile(model, backend="inductor", cache=tmp_path)(*BATCH)[1].backward()
    expected = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    compiled = []
    monkeypatch.setattr(Fuser, "start", lambda self, graph, name: compiled.append(name))
    found = fg.compile(model, backend="inductor", cache=tmp_path)
    found(*BATCH)
    fg.Cache(tmp_path).delete(found.origin.key)
    fg.compile(model, backend="inductor", cache=tmp_path)(*BATCH)[1].backward()
    assert compiled == []
    assert all(torch.equal(a, p.grad) for a, p in zip(expected, model.parameters(), strict=True))


@pytest.mark.parametrize("use", ["loss", "both"])
def test_a_file_holds_the_backwards_that_were_asked_for(use, tmp_path):
    model = Model()
    run = fg.compile(model, backend="eager", cache=False)
    assert_as_eager(model, run, use)
    run.save(tmp_path / "model.fg")
    loaded = fg.load(tmp_path / "model.fg", state=(model,))
    assert_as_eager(model, loaded, use)


def test_a_file_saved_before_any_backward_holds_the_one_from_all_results(tmp_path):
    model = Model()
    run = fg.compile(model, backend="eager", cache=False)
    run(*BATCH)
    run.save(tmp_path / "model.fg")
    loaded = fg.load(tmp_path / "model.fg", state=(model,))
    assert_as_eager(model, loaded, "both")
    with pytest.raises(fg.BackwardError, match="Run this backward before you save"):
        gradients(model, loaded, "loss")


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_of_two_who_want_the_same_late_backward_one_compiles_it(tmp_path, monkeypatch):
    """Of several results the backward is compiled when it is asked for: the entry that was found has none."""

    def two(x):
        return x.sin() * len(os.environ.get("NOTHING", "x")), x.cos()  # no key sees the environment: it is traced

    begun, start = [], inductor.Fuser.start

    def start_slowly(self, graph, name):
        begun.append(name)
        finish = start(self, graph, name)
        return (lambda: time.sleep(0.5) or finish()) if name == "backward" else finish

    monkeypatch.setattr(inductor.Fuser, "start", start_slowly)
    x = torch.randn(7, requires_grad=True)
    calls = [fg.compile(two, backend="inductor", cache=fg.Cache(tmp_path), progress=False) for _ in range(2)]
    results = [call(x) for call in calls]
    assert [call.captures[0].origin.how for call in calls] == ["captured", "traced, then found"]
    found = {}

    def backward(number):
        found[number] = torch.autograd.grad(results[number], x, [torch.ones(7)] * 2)

    threads = [threading.Thread(target=backward, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun == ["forward", "backward"]
    for number in range(2):
        torch.testing.assert_close(found[number], (x.cos() - x.sin(),))
