"""foregrad and torch.compile in one process: around each other, inside each other; compiled autograd; anomaly mode."""

import copy
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import foregrad as fg

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch._dynamo")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.norm(torch.tanh(self.first(x)))).square().sum()


torch.manual_seed(0)
MODEL, X = Model(), torch.randn(2, 3)


def ours(target):
    return fg.compile(target, backend="eager")


def torchs(target):
    return torch.compile(target, backend="aot_eager")


def trained(wrap):
    """Losses and weights of three steps."""
    model = copy.deepcopy(MODEL)
    run, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = run(X)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *(p.detach() for p in model.parameters())]


def inside(make):
    """A model with one layer compiled in another way."""

    def wrap(model):
        model.first = make(model.first)
        return model

    return wrap


def broken(function):
    """torch.compile runs a part of this in Python."""

    def run(x):
        torch._dynamo.graph_break()
        return function(x) * 1

    return torchs(run)


WAYS = {
    "torch.compile around": lambda m: torchs(ours(m)),
    "torch.compile inside": lambda m: ours(torchs(m)),
    "torch.compile around a function": lambda m: torchs(lambda x: ours(m)(x)),
    "torch.compile inside a function": lambda m: ours(lambda x: torchs(m)(x)),
    "torch.compile of a layer": lambda m: ours(inside(torchs)(m)),
    "foregrad for a layer": lambda m: torchs(inside(ours)(m)),
    "torch.compile in parts": lambda m: broken(ours(m)),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_around_the_other_trains_as_eager(way):
    expected = trained(lambda model: model)
    for found, wanted in zip(trained(WAYS[way]), expected, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_step_takes_a_model_that_torch_compiles():
    model = copy.deepcopy(MODEL)
    optimizer, run = torch.optim.SGD(model.parameters(), 0.1), torchs(model)

    @fg.step(model, optimizer, backend="eager")
    def step(x):
        optimizer.zero_grad()
        loss = run(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    found = [*(step(X) for _ in range(3)), *(p.detach() for p in model.parameters())]
    for one, wanted in zip(found, trained(lambda model: model), strict=True):
        torch.testing.assert_close(one, wanted)


def test_a_capture_leaves_torch_compile_as_it_was():
    called = []

    def backend(graph, inputs):
        called.append(graph)
        return graph

    function = torch.compile(lambda x: x * 2, backend=backend)
    assert torch.equal(ours(function)(X), X * 2)
    assert not called  # while it is recorded nothing is compiled
    assert torch.equal(function(X), X * 2)
    assert len(called) == 1


def test_compiled_autograd_around_a_compiled_call():
    from torch._dynamo import compiled_autograd

    model, x = copy.deepcopy(MODEL), X.clone().requires_grad_()
    expected = torch.autograd.grad(model(x), [x, *model.parameters()])
    compiled = ours(model)
    for _ in range(2):
        loss = compiled(x)
        with warnings.catch_warnings(), compiled_autograd._enable(torchs):
            warnings.simplefilter("ignore")
            found = torch.autograd.grad(loss, [x, *model.parameters()])
        for one, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(one, wanted)


def test_anomaly_mode_names_the_line_whose_gradient_is_nan():
    weight = torch.zeros(3, requires_grad=True)

    def function(x):
        return (torch.sqrt(weight * x) * 0).sum()

    compiled = ours(function)
    compiled(torch.ones(3))
    with (
        torch.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match=r"SqrtBackward0[\s\S]*in function\n *return \(torch\.sqrt"),
        pytest.raises(RuntimeError, match="SqrtBackward0' returned nan"),
    ):
        compiled(torch.ones(3)).backward()


def test_a_part_that_torch_compile_may_not_break_runs_as_it_is_while_it_is_captured():
    part = torch.compile(lambda x: x.sin() * 2, fullgraph=True, backend="eager")
    function = fg.compile(lambda x: part(x) + 1, backend="eager")
    x = torch.ones(3)
    assert torch.equal(function(x), x.sin() * 2 + 1)
    assert torch.equal(part(x), x.sin() * 2)


def test_two_threads_that_capture_such_a_part_leave_torch_as_it_was():
    part = torch.compile(lambda x: x.sin() * 2, fullgraph=True, backend="eager")
    entered, left = threading.Barrier(2, timeout=60), threading.Barrier(2, timeout=60)
    count_frames = torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count
    count_frames(-1)  # as nobody's count

    def first(x):
        entered.wait()
        return part(x)

    def second(x):
        entered.wait()
        left.wait()
        return part(x)

    def run_first(x):
        found = fg.compile(first, backend="eager", python="allow")(x)
        left.wait()
        return found

    x = torch.ones(3)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(run_first, x), pool.submit(fg.compile(second, backend="eager", python="allow"), x)
        assert all(torch.equal(one.result(), x.sin() * 2) for one in running)
    assert count_frames(-1) == -1
