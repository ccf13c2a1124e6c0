"""Many captures of one function: each call finds its own, and the order in which they are tried decides nothing."""

import random
import warnings

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.runtime.guards.dispatch import FEW, Dispatch
from foregrad.runtime.sentinels import MISS

MANY = 3 * FEW


@pytest.fixture(autouse=True)
def captured_often():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was captured 8 times")
        yield


def test_each_call_finds_its_own():
    def f(x, scale, options):
        return x * scale + options["shift"][0]

    compiled = fg.compile(f, backend="eager", cache=False, dynamic=False)
    calls = [(torch.randn(1 + n % 7), n % 3 + 0.5, {"shift": [n % 2, None]}) for n in range(MANY)]
    for _ in range(3):
        random.Random(0).shuffle(calls)
        for call in calls:
            assert torch.equal(compiled(*call), f(*call))
    assert len(compiled.captures) <= MANY


def test_what_arguments_do_not_show_is_guarded():
    class Scaled(nn.Module):
        scale = 1.0

        def forward(self, x):
            return x * self.scale

    model = Scaled()
    compiled = fg.compile(model, backend="eager", cache=False)
    for scale in [*range(MANY), *reversed(range(MANY)), 0, MANY - 1, 3]:
        model.scale = float(scale)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), float(scale)))
    assert len(compiled.captures) == MANY


def test_one_that_was_right_before_is_tried_first():
    tried = []

    def made(number):
        def call(args, kwargs):
            tried.append(number)
            return number if args[0].shape[0] == number else MISS

        return call

    calls, dispatch = tuple(made(number) for number in range(MANY)), Dispatch()
    for number in range(MANY):
        assert dispatch.run(calls, (torch.ones(number),), {}) == number
    tried.clear()
    assert [dispatch.run(calls, (torch.ones(number),), {}) for number in range(MANY)] == list(range(MANY))
    assert tried == list(range(MANY))
    assert dispatch.run(calls, (torch.ones(MANY),), {}) is MISS


ODD = {
    "int keys": {1: 2},
    "deep": [[[[[[]]]]]],
    "object": object(),
    "nan": float("nan"),
    "set": {1, 2},
    "range": range(3),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_arguments_of_any_kind_have_a_look(odd):
    calls = tuple(lambda args, kwargs: MISS for _ in range(MANY))
    assert Dispatch().run((*calls, lambda args, kwargs: 1), (odd,), {"name": odd}) == 1


def test_a_list_that_holds_itself_has_a_look():
    loop = []
    loop.append(loop)
    assert Dispatch().run((lambda args, kwargs: 1,), (loop,), {}) == 1
