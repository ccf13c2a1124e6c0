"""The aoti backend: shared libraries that do what eager does. A library takes seconds, so few of them cover much."""

import copy
import hashlib
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from foregrad.backends import aoti, toolchain
from foregrad.backends import build_library as library
from foregrad.backends.compiling import AOTI
from foregrad.backends.library import Library
from foregrad.core.spec import Spec
from foregrad.process.folders import cache_folder
from tests.backends.lend_toolchain import lend_toolchain

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")


class Network(nn.Module):
    """Matrix products, buffers that are written, random numbers, and an op that a library calls by its name."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 3)

    def forward(self, x, classes):
        hidden = F.dropout(F.relu(self.norm(self.first(x))), 0.3)
        return F.cross_entropy(self.last(hidden), classes)


def step(network, target, x, classes, seed):
    torch.manual_seed(seed)
    network.zero_grad()
    loss = target(x, classes)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in network.parameters()), *(b.clone() for b in network.buffers())]


@pytest.fixture(scope="module")
def networks():
    torch.manual_seed(0)
    network = Network()
    twin = copy.deepcopy(network)
    return network, twin, fg.compile(twin, backend="aoti")


@pytest.mark.parametrize("rows", [4, 6])  # two captures
def test_a_training_step_is_that_of_eager(networks, rows):
    network, twin, compiled = networks
    x, classes = torch.randn(rows, 8), torch.randint(3, (rows,))
    for seed in (1, 2):
        expected = step(network, network, x, classes, seed)
        torch.testing.assert_close(step(twin, compiled, x, classes, seed), expected)


def odd(x, empty, half):
    doubled = x.t() * 2
    values, order = x.sort()
    return {
        "input": x,
        "view of an input": x.t(),
        "twice": (doubled, doubled),
        "view": doubled[1:],
        "none": (None, 3),
        "scalar": x.sum(),
        "empty": empty + 1,
        "constant": x * torch.tensor([1.0, 2.0, 3.0]),
        "by name": (torch.linalg.inv_ex(x[:, :2])[0], values, order),
        "dtypes": (half * 2, x.double(), order.int(), x > 0),
    }


@pytest.fixture(scope="module")
def odd_compiled():
    runners = []

    def backend(graph, name):
        runners.append(AOTI()(graph, name))
        return runners[-1]

    compiled = fg.compile(odd, backend=backend)
    compiled(*odd_inputs())
    return compiled, runners


def odd_inputs():
    return torch.randn(2, 3), torch.empty(0, 2), torch.randn(3, dtype=torch.bfloat16)


def test_outputs_of_every_kind(odd_compiled):
    compiled, runners = odd_compiled
    x, empty, half = odd_inputs()
    for _ in range(2):
        expected, found = odd(x, empty, half), compiled(x, empty, half)
        torch.testing.assert_close(found, expected)
        assert found["input"] is x
        assert found["view of an input"]._base is x
        assert found["twice"][0] is found["twice"][1]
        assert found["view"].data_ptr() == found["twice"][0][1:].data_ptr()
        assert found["twice"][0].stride() == expected["twice"][0].stride()
    assert isinstance(runners[0].run, Library)


def test_a_library_lies_in_the_cache_with_what_belongs_to_it(odd_compiled):
    _, runners = odd_compiled
    file = runners[0].library
    assert file.is_file()
    assert file.is_relative_to(cache_folder())
    assert file.stem == hashlib.sha256(file.read_bytes()).hexdigest()
    assert runners[0].run.ops == file.with_suffix(".json")


def test_what_cannot_be_a_library_is_run_by_inductor_with_one_warning(monkeypatch):
    def fail(*args, **kwargs):
        raise NotImplementedError("no such kernel")

    monkeypatch.setattr(library, "library_key", fail)
    aoti._warn_refused.cache_clear()
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            torch.testing.assert_close(fg.compile(lambda x: x.sin() + 1, backend="aoti")(x), x.sin() + 1)
    assert [str(w.message) for w in seen if "library" in str(w.message)] == [
        'a graph cannot be a library, so backend="inductor" runs it, with the same results: '
        "NotImplementedError: no such kernel"
    ]


RECALL = """
import json, subprocess, sys, time
import torch._inductor.compile_fx  # the import is not the toolchain's
from foregrad.backends import toolchain
run, started = subprocess.Popen.__init__, []
def watch(self, command, *args, **kwargs):
    started.append(str(command))
    run(self, command, *args, **kwargs)
subprocess.Popen.__init__ = watch
begin = time.perf_counter()
sets = toolchain.prepare().instruction_sets
print(json.dumps({"sets": sets, "started": started, "seconds": time.perf_counter() - begin}))
"""


AGAIN = """
import subprocess, sys
import torch
import foregrad as fg
torch.set_num_threads(1)
run, started = subprocess.Popen.__init__, []
def watch(self, command, *args, **kwargs):
    started.append(str(command))
    run(self, command, *args, **kwargs)
subprocess.Popen.__init__ = watch
x, w = torch.randn(5, 7), torch.randn(5, 7)
result = fg.compile(lambda x, w: (x * w).sin().sum(0), backend="aoti", progress=False)(x, w)
torch.testing.assert_close(result, (x * w).sin().sum(0))
print(len([c for c in started if "-o" in c]))
"""


@pytest.mark.slow
def test_a_later_process_finds_the_library_and_builds_a_damaged_one_again(tmp_path):
    lend_toolchain(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "FOREGRAD_CACHE_DIR": str(tmp_path)}

    def num_builds():
        command = [sys.executable, "-c", AGAIN]
        return int(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert num_builds() > 0
    assert num_builds() == 0
    (library,) = tmp_path.glob("code-2/*.so")
    library.write_bytes(library.read_bytes()[:5000])
    assert num_builds() > 0
    assert num_builds() == 0


def test_a_later_process_asks_the_compiler_nothing():
    here = toolchain.prepare().instruction_sets
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    said = subprocess.run(
        [sys.executable, "-c", RECALL], env=environment, capture_output=True, text=True, check=True
    ).stdout
    later = json.loads(said.splitlines()[-1])
    assert later["sets"] == here
    assert later["started"] == []


def test_answers_that_are_all_no_are_not_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREGRAD_CACHE_DIR", str(tmp_path))
    made = toolchain.Toolchain({"compiler": "broken"})
    assert not made.probe("avx2", lambda: False)
    made.save()
    assert not made.file.exists()
    assert made.probe("default", lambda: True)
    made.save()
    assert list(json.loads(made.file.read_text())["answers"].values()) == [False, True]


def test_a_library_may_return_an_input_after_its_own_values():
    def f(x, y):
        return x * 2 + y

    x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    fg.compile(f, backend="aoti", progress=False)(x, y).backward(torch.ones(3))
    assert torch.equal(x.grad, torch.full((3,), 2.0))
    assert torch.equal(y.grad, torch.ones(3))


def test_what_a_library_does_not_read_may_be_nothing():
    graph = torch.fx.Graph()
    x, unread, y = (graph.placeholder(name) for name in ("x", "unread", "y"))
    value = graph.call_function(torch.ops.aten.add.Tensor, (x, y))
    graph.output((value, y))
    spec = Spec.of(torch.ones(3))
    for node in (x, unread, y, value):
        node.meta["spec"] = spec
    run = AOTI()(torch.fx.GraphModule({}, graph), "forward")
    given = torch.arange(3.0)
    added, same = run(torch.ones(3), None, given)
    assert torch.equal(added, given + 1)
    assert same is given
