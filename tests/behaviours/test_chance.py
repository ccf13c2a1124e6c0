"""Chance: numbers from Python's and NumPy's generators would be drawn once and kept, so they are refused."""

import os
import random
import secrets
import threading
import uuid
from random import uniform

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled, same_as_eager

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


PYTHON, NUMPY, OLD_NUMPY = random.Random(0), np.random.default_rng(0), np.random.RandomState(0)
NORMAL = NUMPY.normal
KEPT = {"generators": [NUMPY]}


class Holds(nn.Module):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(1)

    def forward(self, x):
        return x * self.rng.uniform()


DRAWS = [drops_a_layer, mixes_up, held_by_name, imported_inside, in_a_helper, Drops()]
DRAWS_FROM_OBJECTS = {
    "random.Random": lambda x: x * PYTHON.gauss(0, 1),
    "numpy's Generator": lambda x: x * NUMPY.normal(),
    "numpy's RandomState": lambda x: x * OLD_NUMPY.rand(),
    "a method of one": lambda x: x * NORMAL(),
    "one in a container": lambda x: x * KEPT["generators"][0].random(),
    "one in a module": Holds(),
}
ENTROPY = {
    "os.urandom": lambda x: x * os.urandom(1)[0],
    "uuid": lambda x: x * (uuid.uuid4().int % 7),
    "secrets": lambda x: x * secrets.randbelow(9),
    "SystemRandom": lambda x: x * random.SystemRandom().random(),
    "an unseeded random.Random": lambda x: x * random.Random().random(),
    "an unseeded Generator": lambda x: x * np.random.default_rng().random(),
}


@pytest.mark.parametrize("draws", DRAWS)
def test_a_draw_from_python_or_numpy_is_refused_and_taken_back(draws):
    python, numpy = random.getstate(), np.random.get_state()
    with pytest.raises(fg.CaptureError, match=r"draws numbers from[^\n]*\n  at .*test_chance"):
        compiled(draws)(X)
    assert random.getstate() == python
    assert np.array_equal(np.random.get_state()[1], numpy[1])


@pytest.mark.parametrize("draws", DRAWS_FROM_OBJECTS)
def test_a_draw_from_a_generator_object_is_refused_and_taken_back(draws):
    before = PYTHON.getstate(), NUMPY.bit_generator.state, OLD_NUMPY.get_state()[2]
    with pytest.raises(fg.CaptureError, match=r"draws numbers from[^\n]*\n  at .*test_chance"):
        compiled(DRAWS_FROM_OBJECTS[draws])(X)
    assert before == (PYTHON.getstate(), NUMPY.bit_generator.state, OLD_NUMPY.get_state()[2])


@pytest.mark.parametrize("draws", ENTROPY)
def test_entropy_of_the_system_is_refused(draws):
    with pytest.raises(fg.CaptureError, match=r"draws numbers from the system's entropy[^\n]*\n  at .*test_chance"):
        compiled(ENTROPY[draws])(X)


@same_as_eager
def test_a_generator_made_and_seeded_inside_draws_the_same_at_each_call(wrap):
    f = wrap(lambda x: x * random.Random(3).random() * np.random.default_rng(3).random())
    return f(X), f(X)


class DrawsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * float(np.random.rand()) * NUMPY.random()


def test_a_draw_in_a_backward_is_refused_by_that_backward():
    x = X.clone().requires_grad_()
    y = compiled(lambda x: DrawsInBackward.apply(x))(x)
    with pytest.raises(fg.CaptureError, match=r"draws numbers from[^\n]*\n  at .*test_chance"):
        y.sum().backward()


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
