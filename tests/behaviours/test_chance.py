"""Chance: numbers from Python's and NumPy's generators would be drawn once and kept, so they are refused."""

import random
import threading
from random import uniform

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled

X = torch.ones(3)


def drops_a_layer(x):
    return x * 2 if random.random() < 0.5 else x


def mixes_up(x):
    return x * float(np.random.beta(0.2, 0.2))


def held_by_name(x):
    return x * uniform(1, 2)


def imported_inside(x):
    import random as chance

    return x * chance.gauss(0, 1)


def in_a_helper(x):
    return drops_a_layer(x) + 1


class Drops(nn.Module):
    def forward(self, x):
        return drops_a_layer(x)


DRAWS = [drops_a_layer, mixes_up, held_by_name, imported_inside, in_a_helper, Drops()]


@pytest.mark.parametrize("draws", DRAWS)
def test_a_draw_from_python_or_numpy_is_refused_and_taken_back(draws):
    python, numpy = random.getstate(), np.random.get_state()
    with pytest.raises(fg.CaptureError, match=r"draws numbers from[^\n]*\n  at .*test_chance"):
        compiled(draws)(X)
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy[1])


def test_a_draw_in_a_step_is_refused():
    with pytest.raises(fg.CaptureError, match="Python's random"):
        fg.step(backend="eager", cache=False)(drops_a_layer)(X)


def draw():
    random.random()


def test_a_draw_in_another_thread_is_its_own():
    def f(x):
        thread = threading.Thread(target=draw)
        thread.start()
        thread.join()
        return x * 2

    state = random.getstate()
    assert torch.equal(compiled(f)(X), X * 2)
    assert random.getstate() != state
