"""Whatever the program, stitched regions are the whole: random stacks, random programs, torch's modules."""

import random

import pytest
import torch
from torch.nn import functional as F

from foregrad.regions import find
from tests.compare import assert_same, leaf
from tests.conformance import judge
from tests.conformance.__main__ import check
from tests.conformance.judge import Status
from tests.conformance.modules import names
from tests.fuzz.check import REFUSED
from tests.fuzz.generate import program
from tests.fuzz.run import with_foregrad

#: Parts of a block: `x[6, 4]`, a weight of its own, one that all share, the number of the block.
PARTS = [
    lambda x, w, shared, i: x @ w,
    lambda x, w, shared, i: x @ shared.t() * 0.5,
    lambda x, w, shared, i: F.layer_norm(x, (4,)),
    lambda x, w, shared, i: F.dropout(x, 0.2),
    lambda x, w, shared, i: x + shared[i % 4],
    lambda x, w, shared, i: x * (1 + i % 2),
    lambda x, w, shared, i: torch.cat(x.chunk(2, 1)[::-1], 1),
    lambda x, w, shared, i: x.view(2, 3, 4).transpose(0, 1).reshape(6, 4).tanh(),
    lambda x, w, shared, i: x.t().sin().t(),
    lambda x, w, shared, i: x.clone().mul_(0.5).add_(w.sum()),
    lambda x, w, shared, i: x.max(1, keepdim=True)[0] - x,
    lambda x, w, shared, i: x + torch.tensor([float(i)]),
    lambda x, w, shared, i: F.gelu(x) + x.detach().cos(),
]


def random_stacks(seed):
    """One to three stacks of random blocks, with something between them, and some of the values on the way."""
    choose = random.Random(seed)
    stacks = [
        (choose.choices(PARTS, k=choose.randint(2, 6)), choose.randint(2, 9)) for _ in range(choose.randint(1, 3))
    ]
    kept = choose.sample(range(12), k=3)

    def f(x, shared, *weights):
        seen = []
        for parts, depth in stacks:
            for i in range(depth):
                y = x
                for part in parts:
                    y = part(y, weights[i], shared, i)
                x = x + y
                seen += [y.t()] if i in kept else []
            x = x.cumsum(0).softmax(1)
        return x, seen

    return f


@pytest.mark.parametrize("eager_to_cut", [False, True], indirect=True)
@pytest.mark.parametrize("seed", range(10))
def test_random_stacks(found, eager_to_cut, seed):
    f = random_stacks(seed)
    inputs = lambda: (leaf(6, 4), leaf(4, 4), *(leaf(4, 4) for _ in range(9)))  # noqa: E731  # one line reads better
    assert_same(lambda *inputs: f(*inputs)[0], inputs)
    with torch.no_grad():
        assert_same(f, inputs, backward=False)


def test_random_programs(found, eager_to_cut):
    verdicts = {seed: with_foregrad(program(seed)) for seed in range(30)}
    assert not {seed: text for seed, text in verdicts.items() if text and not text.startswith(REFUSED)}


@pytest.mark.parametrize("name", [*names()[::20], "nn.LSTM", "nn.LSTMCell", "nn.BatchNorm2d"])
def test_modules(found, eager_to_cut, name):
    for result in check("modules", name, judge.foregrad):
        assert result.status in (Status.PASSED, Status.EXCLUDED), result.reason


def test_the_search_ends_in_time(found, monkeypatch):
    monkeypatch.setattr(find, "_EFFORT", 0)
    assert_same(random_stacks(1), lambda: (leaf(6, 4), leaf(4, 4), *(leaf(4, 4) for _ in range(9))))
    assert all(len(regions.calls) <= 1 for regions in found)
