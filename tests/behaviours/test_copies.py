"""Copies: compiled modules are copied and pickled as modules are, compiled functions as functions are."""

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import foregrad as fg
from foregrad.core.errors import CannotKeep
from tests.compare import BACKEND, compiled


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        # no bias before a norm: its gradient is zero but for rounding, which Adam would make as large as any other
        self.first, self.norm, self.second = nn.Linear(3, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 1)

    def forward(self, x):
        return self.second(self.norm(self.first(x)).relu())


def twins():
    """A module, and a compiled one with the same weights."""
    model = Net()
    return model, compiled(copy.deepcopy(model))


def train(model, seed, steps=3, average=None):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 3, generator=draws)).square().mean().backward()
        optimizer.step()
        if average is not None:
            average.update_parameters(model)


def assert_close(ours, eager):
    tolerance = 0 if BACKEND == "eager" else 1e-5
    torch.testing.assert_close(ours, eager, rtol=tolerance, atol=tolerance)


def assert_same(ours, eager):
    """Bitwise with the eager backend; what compilers make rounds otherwise."""
    (a, b) = (ours.state_dict(), eager.state_dict())
    assert list(a) == list(b)
    for name in a:
        assert_close(a[name], b[name])


def test_a_deep_copy_trains_by_itself():
    pairs = []
    for model in twins():
        train(model, 0)
        other = copy.deepcopy(model)
        train(model, 1)
        train(other, 2)
        pairs.append((model, other))
    (eager, eager_copy), (ours, our_copy) = pairs
    assert_same(ours, eager)
    assert_same(our_copy, eager_copy)
    assert our_copy.captures
    assert our_copy.first.weight is not ours.first.weight


def test_a_deep_copy_of_a_module_and_its_compiled_twin_keeps_them_together():
    model = Net()
    holder = {"plain": model, "compiled": compiled(model)}
    other = copy.deepcopy(holder)
    assert other["plain"].first is other["compiled"].first
    assert other["plain"].first is not model.first


def test_a_shallow_copy_shares_its_weights_and_is_compiled():
    _, ours = twins()
    other = copy.copy(ours)
    assert other.first is ours.first
    x = torch.ones(4, 3)
    other.eval()
    assert_close(other(x), Net.forward(other, x))
    assert other.captures
    assert not ours.captures


@pytest.mark.parametrize("multi_avg_fn", [None, get_ema_multi_avg_fn(0.9)])
def test_an_averaged_model_of_a_compiled_module(multi_avg_fn):
    results = []
    for model in twins():
        average = AveragedModel(model, multi_avg_fn=multi_avg_fn)
        train(model, 0, average=average)
        average.eval()
        results.append((model, average, average(torch.ones(4, 3))))
    (eager, eager_average, expected), (ours, our_average, found) = results
    assert_same(ours, eager)
    assert_same(our_average, eager_average)
    assert_close(found, expected)


@pytest.mark.parametrize("how", ["pickle", "torch.save"])
def test_a_pickle_of_a_compiled_module_trains_on(how):
    eager, ours = twins()
    train(eager, 0)
    train(ours, 0)
    file = io.BytesIO()
    torch.save(ours, file) if how == "torch.save" else pickle.dump(ours, file)
    file.seek(0)
    other = torch.load(file, weights_only=False) if how == "torch.save" else pickle.load(file)
    train(other, 1)
    train(eager, 1)
    assert_same(other, eager)
    assert other.captures


def double(x):
    return x * 2


@fg.compile
def triple(x):
    return x * 3


class Scale:
    def __init__(self):
        self.factor = torch.full((), 2.0)

    def __call__(self, x):
        return x * self.factor


def test_a_compiled_function_is_copied_as_a_function_is():
    for function in (compiled(double), compiled(lambda x: x + 1), triple):
        assert copy.copy(function) is function
        assert copy.deepcopy({"f": function})["f"] is function


def test_what_is_bound_to_an_object_is_bound_to_its_copy():
    x, model = torch.ones(4, 3), Net()
    for function in (compiled(model.forward), compiled(Scale())):
        before = function(x)
        other = copy.deepcopy(function)
        with torch.no_grad():
            model.second.bias.add_(1)
            other(x)
        assert other is not function
        assert len(other.captures) == 1
        assert other(x).shape == before.shape
    assert torch.equal(other(x), x * 2)


def test_a_compiled_function_is_pickled_by_its_name():
    ours = compiled(double)
    other = pickle.loads(pickle.dumps(ours))
    assert other(torch.ones(2)).tolist() == [2.0, 2.0]
    assert repr(other.options.cache) == repr(ours.options.cache)
    assert pickle.loads(pickle.dumps(triple)) is triple
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):  # as of the lambda itself
        pickle.dumps(compiled(lambda x: x))


def test_a_step_is_not_copied():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @fg.step(model, optimizer, backend="eager", cache=False)
    def step(x):
        return model(x).sum()

    assert copy.copy(step) is step
    with pytest.raises(CannotKeep, match=r"train the same ones.*\n.*new fg.step"):
        copy.deepcopy(step)
    with pytest.raises(CannotKeep, match="state_dict"):
        pickle.dumps(step)


def test_no_key_gets_into_a_pickle(tmp_path):
    keyed = fg.Cache(f"file://{tmp_path}", key=b"secret" * 8)
    ours = fg.compile(Net(), backend="eager", cache=keyed)
    with pytest.raises(CannotKeep, match="FOREGRAD_CACHE_KEY"):
        pickle.dumps(ours)
    assert copy.deepcopy(ours).forward.options.cache is keyed


def test_a_cache_in_a_pickle_is_the_same_place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = fg.compile(Net(), backend="eager", cache=fg.Cache("here", max_bytes=1 << 20, readonly=False))
    data = pickle.dumps(ours)
    monkeypatch.chdir("/")
    assert repr(pickle.loads(data).forward.options.cache) == f"Cache({tmp_path / 'here'})"
    assert pickle.loads(pickle.dumps(fg.Cache())).stats is not None


SCRIPT = """
import pickle, sys, torch, foregrad as fg
from torch import nn
from torch.utils.data import DataLoader

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)

    def forward(self, x):
        return self.linear(x).cos()

def double(rows):
    return torch.stack(rows) * 2

if __name__ == "__main__":
    if sys.argv[1] == "write":
        model = Net()
        ours = fg.compile(model, backend="eager", cache=False)
        ours(torch.ones(2, 3))
        with open("pickled", "wb") as file:
            pickle.dump((ours, model(torch.ones(2, 3))), file)
        collate = fg.compile(double, backend="eager", cache=False)
        spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
        loader = DataLoader(list(torch.arange(6.0)), 2, collate_fn=collate, **spawned)
        assert torch.cat(list(loader)).tolist() == [0, 2, 4, 6, 8, 10]
    else:
        with open("pickled", "rb") as file:
            ours, expected = pickle.load(file)
        assert torch.equal(ours(torch.ones(2, 3)), expected)
        assert len(ours.captures) == 1
"""


@pytest.mark.slow
def test_pickles_go_to_new_processes_and_to_spawned_workers(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    for what in ("write", "read"):
        done = subprocess.run(
            [sys.executable, "script.py", what], cwd=tmp_path, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
