"""Warm starts: a second process finds what the first has made, without tracing or after it, and says which."""

import gc
import json
import os
import subprocess
import sys
import textwrap
import traceback
import warnings
import weakref
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.cache.serialize.cached_calls import CAPTURED, FOUND, TRACED
from foregrad.core.generated import Generated

BACKENDS = [
    "eager",
    pytest.param("inductor", marks=pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")),
]


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out, self.scale = nn.Linear(4, width), nn.Linear(width, 2), 2.0

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.gelu(self.into(x)) * self.scale)


def compiled(cache: fg.Cache, backend: str = "eager", **options):
    model = Net(**options)
    return model, fg.compile(model, backend=backend, cache=cache, progress=False)


def run(function, model: nn.Module) -> list[Tensor]:
    x = torch.ones(3, 4)
    model.zero_grad()
    y = function(x)
    y.square().mean().backward()
    return [y.detach(), *(p.grad for p in model.parameters())]


def origins(function) -> list[str]:
    return [made.origin.how for made in function.captures]


@pytest.fixture
def cache(tmp_path: Path) -> fg.Cache:
    return fg.Cache(tmp_path / "cache")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_is_found_without_tracing(backend: str, cache: fg.Cache):
    model, first = compiled(cache, backend)
    expected = run(first, model)
    assert origins(first) == [CAPTURED]
    model, second = compiled(cache, backend)
    assert all(torch.equal(a, b) for a, b in zip(run(second, model), expected, strict=True))
    assert origins(second) == [FOUND]
    assert str(second.captures[0]) == str(first.captures[0])
    assert str(second.timings) == str(first.timings)
    assert second.captures[0].reason == first.captures[0].reason
    assert "found without tracing" in str(fg.explain(second))


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_what_is_found_is_described_as_what_was_captured(cache: fg.Cache, monkeypatch: pytest.MonkeyPatch):
    def stacked() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(*(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(6)))

    def told(function) -> list[str]:
        return [*map(str, function.regions), *map(str, function.captures), *(c.reason for c in function.captures)]

    x = torch.ones(3, 8)
    captured, found, traced = [fg.compile(stacked(), backend="inductor", cache=cache, progress=False) for _ in range(3)]
    traced.note = "nobody reads this"
    for function in (captured, found, traced):
        function(x).square().sum().backward()
    assert [origins(one) for one in (captured, found, traced)] == [[CAPTURED], [FOUND], [TRACED]]
    assert str(found.timings) == str(captured.timings)
    monkeypatch.setattr(found._foregrad, "_new_capture", None)  # nothing is traced to tell this
    assert told(found) == told(captured) == told(traced)
    (forward, _), (same, _) = captured.regions, found.regions
    assert same.distinct[0].count > 1
    assert same.inputs == forward.inputs
    assert same.results == forward.results
    assert [str(r.graph.graph) for r in same.distinct] == [str(r.graph.graph) for r in forward.distinct]


def test_what_the_entry_does_not_hold_is_recorded_when_it_is_asked_for(cache: fg.Cache):
    compiled(cache)[1](torch.ones(3, 4))
    model, found = compiled(cache)
    x = torch.ones(3, 4)
    (first,) = torch.autograd.grad(found(x).square().sum(), model.into.weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), model.out.weight)
    (first,) = torch.autograd.grad(model(x).square().sum(), model.into.weight, create_graph=True)
    (expected,) = torch.autograd.grad(first.sum(), model.out.weight)
    assert origins(found) == [FOUND]
    torch.testing.assert_close(second, expected)
    assert "linear" in str(found.captures[0].program) or "addmm" in str(found.captures[0].program)


def test_a_change_without_effect_is_traced_and_then_found(cache: fg.Cache):
    model, first = compiled(cache)
    run(first, model)
    model, second = compiled(cache)
    model.note = "nobody reads this"
    run(second, model)
    assert origins(second) == [TRACED]
    assert "no entry of these sources" in str(second.captures[0].origin)


@pytest.mark.parametrize("change", ["width", "scale", "training", "dtype", "hook", "batch"])
def test_a_change_with_effect_is_captured_again(change: str, cache: fg.Cache):
    model, first = compiled(cache)
    run(first, model)
    model, second = compiled(cache, width=9 if change == "width" else 8)
    x = torch.ones(4 if change == "batch" else 3, 4)
    if change == "scale":
        model.scale = 3.0
    elif change == "training":
        model.into = nn.Sequential(model.into, nn.Dropout(0.5).eval())
    elif change == "dtype":
        model, x = model.double(), x.double()
    elif change == "hook":
        model.into.register_forward_hook(lambda module, args, result: result * 2)
    assert torch.equal(second(x), model(x))
    assert origins(second) == [CAPTURED]


def test_a_guard_of_an_entry_is_checked(cache: fg.Cache):
    model, first = compiled(cache)
    run(first, model)
    model, second = compiled(cache)
    run(second, model)
    model.scale = 5.0
    assert torch.equal(run(second, model)[0], model(torch.ones(3, 4)))
    assert origins(second) == [FOUND, CAPTURED]


def test_bytecode_of_another_python_is_left_alone():
    lines = ("def double(x):", "    return factor * x")
    made = Generated("double", lines, {"factor": 2})
    assert Generated("double", lines, {"factor": 3}, bytecode=made.compiled()).load()(2) == 6
    assert Generated("double", lines, {"factor": 3}, bytecode=b"\0\0\r\nanything").load()(2) == 6
    broken = Generated("double", lines, {"factor": "a"}, bytecode=made.compiled()).load()
    with pytest.raises(TypeError) as caught:
        broken(1.5)
    assert "return factor * x" in "".join(traceback.format_exception(caught.value))


def test_no_cache_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path / "mine"))
    model = Net()
    run(fg.compile(model, backend="eager"), model)
    run(fg.compile(model, backend="eager", cache=False), model)
    assert not (tmp_path / "mine").exists()


def test_what_an_argument_looks_like_may_be_too_little(cache: fg.Cache):
    for _ in range(2):
        _, function = compiled(cache)
        x = torch.ones(3, 4, requires_grad=True) * 2
        function(x)
        assert "has a history" in str(function.captures[0].origin)


@pytest.mark.parametrize(
    "view", [lambda data: data[2:5], lambda data: data.view(4, 3, 4)[1], lambda data: data.T[:4].T]
)
def test_a_view_of_a_plain_tensor_starts_without_tracing(view, cache: fg.Cache):
    for expected in (CAPTURED, FOUND):
        data = torch.arange(48.0).view(12, 4)
        model, function = compiled(cache)
        assert torch.equal(function(view(data)), model(view(data)))
        assert origins(function) == [expected]
    (first,) = torch.autograd.grad(function(view(data)).sum(), model.into.weight, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), model.out.weight)
    (first,) = torch.autograd.grad(model(view(data)).sum(), model.into.weight, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.sum(), model.out.weight)[0])


def counting_step(cache: fg.Cache):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @fg.step(model, optimizer, backend="eager", cache=cache, python="allow")
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        model.count = getattr(model, "count", 0) + 1
        return loss.detach()

    return train


def test_a_step_that_does_something_in_python_is_not_kept(cache: fg.Cache):
    for _ in range(2):
        train = counting_step(cache)
        train(torch.ones(3, 4))
        assert origins(train) in ([CAPTURED], [TRACED])
        assert "something in Python" in str(train.captures[0].origin)


SCRIPT = """
import json, sys, torch, foregrad as fg
from model import make, train_step
model, optimizer = make()
step = fg.step(model, optimizer, backend=sys.argv[2], cache=sys.argv[1], progress=False)(train_step(model, optimizer))
torch.manual_seed(3)
x, y = torch.randn(8, 6), torch.randint(3, (8,))
torch.manual_seed(1)
losses = [step(x, y).item() for _ in range(4)]
model, optimizer = make()
eager = train_step(model, optimizer)
torch.manual_seed(1)
expected = [eager(x, y).item() for _ in range(4)]
heavy = ("capture", "record.recorder", "program.program", "dynamic")
records = [name for name in heavy if f"foregrad.{name}" in sys.modules]
print(json.dumps([losses, expected, [c.origin.how for c in step.captures], records]))
"""

MODEL = """
import torch, torch.nn.functional as F
from torch import nn
import helper

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line, self.drop = nn.LayerNorm(6), nn.Linear(6, 6), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(helper.squash(self.line(self.norm(x))))

def make():
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(6, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)

def train_step(model, optimizer):
    def train(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()
    return train
"""

HELPER = """
import torch

def squash(x):
    result = torch.tanh(x)
    return result
"""


def in_new_process(folder: Path, backend: str) -> tuple[list[float], list[float], list[str], list[str]]:
    (folder / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "script.py", str(folder / "cache"), backend]
    environment = os.environ | {"PYTHONPATH": str(Path(fg.__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tuple(json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step_across_processes_and_edits(backend: str, tmp_path: Path):
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "helper.py").write_text(HELPER)
    losses, expected, how, _ = in_new_process(tmp_path, backend)
    assert set(how) == {CAPTURED}
    assert losses == pytest.approx(expected, rel=1e-5)
    again, _, how, records = in_new_process(tmp_path, backend)
    assert set(how) == {FOUND}
    assert again == losses
    assert backend == "eager" or not records, "what is found needs nothing that records"
    (tmp_path / "helper.py").write_text(
        HELPER.replace("import torch", "import torch  # squashes").replace("result", "it")
    )
    again, _, how, _ = in_new_process(tmp_path, backend)
    assert set(how) == {FOUND}
    assert again == losses
    (tmp_path / "helper.py").write_text(HELPER.replace("tanh", "sigmoid"))
    changed, expected, how, _ = in_new_process(tmp_path, backend)
    assert set(how) == {CAPTURED}
    assert changed == pytest.approx(expected, rel=1e-5)
    assert changed != losses


def test_arguments_of_a_first_call_are_let_go(cache: fg.Cache):
    """Neither what was captured and kept holds on to them, nor what was found."""
    for _ in range(2):
        function = fg.compile(lambda x: x.sin().exp(), backend="eager", cache=cache)
        argument = torch.ones(3, requires_grad=True)
        seen = weakref.ref(argument)
        function(argument).sum().backward()
        del argument
        gc.collect()
        assert seen() is None
    assert origins(function) == [FOUND]


def test_an_entry_for_another_path_is_no_wrong_entry(tmp_path: Path):
    """Where a step branches on a number, what is found may be for the other branch: its guards say so, and a check of
    what was found is not about it."""

    def run_steps(cache: fg.Cache):
        weight = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)

        @fg.step(weight, optimizer, schedule, backend="eager", cache=cache)
        def step(x):
            optimizer.zero_grad()
            loss = (weight * x).sum()
            loss.backward()
            optimizer.step()
            schedule.step()
            return loss.detach()

        for _ in range(4):
            step(torch.ones(2))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001)
        return step

    for _ in range(3):
        cache = fg.Cache(tmp_path / "cache", verify_every=1)
        step = run_steps(cache)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            cache.wait()
    assert FOUND in origins(step)
