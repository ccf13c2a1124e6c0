"""A saved step says how its library is called, where nothing else is needed to train with it."""

from pathlib import Path

import pytest
import torch

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.cache.format.container import read_header

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")


def about(path: Path, kind: type, **options) -> dict | None:
    weight = torch.nn.Linear(3, 1, bias=False)
    optimizer = kind(weight.parameters(), lr=0.1, **options)

    @fg.step(weight, optimizer, backend="aoti", progress=False)
    def train(x):
        optimizer.zero_grad()
        loss = weight(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(2):
        train(torch.ones(2, 3))
    train.save(path)
    return read_header(path).about["captures"][-1]["library"]


def test_inputs_are_arguments_tensors_of_the_state_and_numbers(tmp_path: Path):
    library = about(tmp_path / "step.fg", torch.optim.SGD, momentum=0.9)
    assert library is not None
    assert [one.get("tensor", one.get("value", one["name"])) for one in library["inputs"]] == [
        "0.weight", "1.state.0.momentum_buffer", "x", 0.9, 1, -0.1,
    ]  # fmt: skip
    assert library["outputs"][0] == {"role": "output", "name": "0", "spec": "f32[]"}
    assert "write" not in [one["role"] for one in library["outputs"]]


def test_numbers_that_change_with_each_step_are_not_for_a_library_alone(tmp_path: Path):
    assert about(tmp_path / "step.fg", torch.optim.AdamW) is None
