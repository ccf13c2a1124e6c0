"""The generated call: Python that can be read, golden for a few small functions."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled, leaf
from tests.golden import assert_golden

scale = torch.ones(3)


def pointwise(x, w):
    return (x * w).sin()


def writes(x, w):
    x.add_(w)
    return x[1:], w * 2


def closed_over(x, *, factor):
    return {"scaled": x * scale * factor}


CALLS = {
    "pointwise": lambda f: f(pointwise)(leaf(3), leaf(3)),
    "writes": lambda f: f(writes)(torch.ones(3), torch.ones(3)),
    "closed_over": lambda f: f(closed_over)(torch.ones(3), factor=2.0),
    "linear": lambda f: f(nn.Linear(3, 2))(torch.ones(4, 3)),
}


def source_of(name):
    made = []

    def compile_and_keep(target):
        made.append(compiled(target))
        return made[0]

    CALLS[name](compile_and_keep)
    (capture,) = fg.explain(made[0]).captures
    return capture.source


@pytest.mark.parametrize("name", CALLS)
def test_the_source_of_a_call_is_golden(name):
    assert_golden(source_of(name), Path(__file__).parent / f"{name}.txt")


@pytest.mark.parametrize("name", CALLS)
def test_the_source_of_a_call_is_one_function(name):
    (function,) = ast.parse(source_of(name)).body
    assert isinstance(function, ast.FunctionDef)


def test_two_captures_of_one_function_have_one_source():
    assert source_of("pointwise") == source_of("pointwise")
