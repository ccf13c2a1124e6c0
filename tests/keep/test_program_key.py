"""The key of a captured program: what it computes and how it is called, and no name of a variable."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import foregrad as fg
from foregrad.api.capture import capture_call
from foregrad.backends.eager import compile_graph
from foregrad.cache.key.ingredients import differences
from foregrad.cache.key.program_key import program_key
from foregrad.runtime.options import Options

WAY = Options(compile_graph)
X = torch.ones(4, 3)


def key(target, *args, options=WAY, state=()):
    return program_key(fg.capture(target, *(args or (X,)), state=state), options)


def changed(old, new):
    return [one.name for one in differences(old, new)]


def test_names_of_variables_do_not_matter():
    def one(x, scale):
        hidden = x * scale
        return hidden.relu().sum()

    def another_name(values, factor):
        # a comment

        h = values * factor
        return h.relu().sum()

    x, scale = torch.ones(3, requires_grad=True), torch.ones(3)
    assert changed(key(one, x, scale), key(another_name, x, scale)) == []


def test_a_name_that_is_also_a_word_of_an_op_does_not_hide_that_word():
    def one(floor):
        return torch.div(floor, 2, rounding_mode="floor")

    def two(trunc):
        return torch.div(trunc, 2, rounding_mode="trunc")

    assert "program" in changed(key(one), key(two))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (lambda x: x * 2, lambda x: x * 3),
        (lambda x: x * 2, lambda x: x * 2.0),
        (lambda x: x.sin(), lambda x: x.cos()),
        (lambda x: x + x.sin(), lambda x: x.sin() + x),
        (lambda x: x.sum(0), lambda x: x.sum(1)),
        (lambda x: x.to(torch.float64), lambda x: x.to(torch.float16)),
        (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), lambda x: x * torch.tensor([1.0, 2.0, 4.0])),
        (lambda x: x / 0.0, lambda x: x / -0.0),
    ],
)
def test_what_a_program_computes(one, two):
    assert "program" in changed(key(one), key(two))
    assert changed(key(one), key(one)) == []


def test_shapes_strides_dtypes_and_gradients_of_inputs():
    def f(x):
        return x * 2

    old = key(f, torch.ones(4, 4))
    others = [torch.ones(4, 5), torch.ones(4, 4).t(), torch.ones(4, 4, dtype=torch.float64)]
    for other in [*others, torch.ones(4, 4, requires_grad=True)]:
        assert "signature" in changed(old, key(f, other)) or not other.is_contiguous()
        assert old.digest != key(f, other).digest
    assert key(f, torch.zeros(4, 4)).digest == old.digest


def test_how_results_are_put_together():
    assert "calling" in changed(key(lambda x: (x * 2, 3)), key(lambda x: [x * 2, 3]))
    assert "calling" in changed(key(lambda x: (x * 2, 3)), key(lambda x: (x * 2, 4)))


def test_a_write_to_an_input():
    assert "calling" in changed(key(lambda x: x * 2), key(lambda x: x.mul_(2)))


def test_parameters_are_found_by_their_paths():
    class One(nn.Module):
        def __init__(self, name):
            super().__init__()
            self.name = name
            self.register_parameter(name, nn.Parameter(torch.ones(3)))

        def forward(self, x):
            return x * self.get_parameter(self.name)

    old, new = key(One("weight")), key(One("scale"))
    (found,) = differences(old, new)
    assert found.name == "signature"
    assert "param weight" in str(found)
    assert "param scale" in str(found)


def test_data_of_parameters_do_not_matter():
    assert key(nn.Linear(3, 3)).digest == key(nn.Linear(3, 3)).digest


def define(formula, fake):
    @torch.library.custom_op("keys_of_programs::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(fake)
    twice.register_autograd(formula)
    return twice


def first_formula(ctx, g):
    return g * 2


def second_formula(ctx, g):
    return g + g


def test_ops_of_the_users():
    """The formula of an op is recorded; what makes it what it is stays an ingredient of its own."""
    x = torch.ones(3, requires_grad=True)
    old = key(define(first_formula, lambda x: torch.empty_like(x)), x)
    assert "op keys_of_programs::twice: fake kernel" in old.by_name
    formula = changed(old, key(define(second_formula, lambda x: torch.empty_like(x)), x))
    assert "op keys_of_programs::twice: autograd formula" in formula
    fake = changed(old, key(define(first_formula, lambda x: x.new_empty(x.shape)), x))
    assert [name for name in fake if "lambda" in name]


def test_a_training_step_has_a_key_that_stays():
    def made():
        model = nn.Linear(3, 3)
        optimizer = torch.optim.AdamW(model.parameters())

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        step(X)
        captured = capture_call(step, (X,), {}, state=(model, optimizer), python="warn")
        return program_key(captured.program, WAY)

    assert changed(made(), made()) == []


def test_the_options_are_part_of_it():
    def unused(program):
        return program

    names = changed(key(lambda x: x), key(lambda x: x, options=Options(compile_graph, (unused,))))
    assert "options: pass 0" in names


@pytest.mark.slow
def test_a_key_is_the_same_in_every_process():
    worker = Path(__file__).with_name("program_keys_worker.py")
    said = []
    for seed in "12":
        surroundings = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run([sys.executable, str(worker)], env=surroundings, capture_output=True, check=True)
        said.append(json.loads(done.stdout))
    assert said[0] == said[1]
    assert len(said[0]) == 2


def test_the_key_of_a_program_on_tensors_that_wrap_others_holds_no_address():
    def doubled():
        return key(lambda x: x * 2, TwoTensor(torch.ones(3), torch.ones(3)))

    first, kept = doubled(), [torch.ones(3) for _ in range(10)]
    assert doubled().digest == first.digest
    assert kept
