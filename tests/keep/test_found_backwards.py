"""The backwards that were asked for are what later processes find, and what a file holds."""

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends.toolchain import compiler
from foregrad.keep.warm import FOUND


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
