"""The examples: captured, they train as eager does, bit by bit, and they learn. Each is a program of its own."""

import importlib
import subprocess
import sys
from functools import partial

import pytest

import foregrad as fg
from tests.house.source import ROOT

FOLDER = ROOT / "examples"
# steps after which the error is below this part of what it was
LEARNS = {
    "pinn": (500, 0.7),
    "force_field": (100, 0.3),
    "maml": (150, 0.6),
    "gradient_penalty": (400, 0.5),
}

EVERY_EXAMPLE = pytest.mark.parametrize("name", LEARNS)


@pytest.fixture
def load(monkeypatch):
    """Import from examples/, whose files import each other by their bare names."""
    monkeypatch.syspath_prepend(FOLDER)
    return importlib.import_module


@EVERY_EXAMPLE
def test_the_loss_curve_is_eagers_bit_by_bit(load, name):
    runner, example = load("runner"), load(name)
    eager = runner.losses(example.build(runner.plain), 8)
    captured = runner.losses(example.build(partial(fg.step, backend="eager")), 8)
    assert captured == eager
    assert len(set(eager)) == 8


@EVERY_EXAMPLE
def test_it_learns(load, name):
    steps, part = LEARNS[name]
    training = load(name).build(partial(fg.step, backend="eager"))
    before = training.error()
    load("runner").losses(training, steps)
    assert training.error() < part * before


@pytest.mark.parametrize("how", [("--backend", "eager"), ("--plain",)], ids=" ".join)
def test_the_command_line_shows_steps_and_error(load, monkeypatch, capsys, how):
    """In this process, since a new one would import torch again."""
    runner, example = load("runner"), load("pinn")
    monkeypatch.setattr(sys, "argv", ["pinn.py", "--steps", "3", *how])
    runner.main(example.build, steps=2000)
    first, *steps, last = capsys.readouterr().out.splitlines()
    assert first.startswith("before: ")
    assert [line.split()[:2] for line in steps if line.startswith("step")] == [["step", str(n)] for n in (1, 2, 3)]
    assert last.startswith("after: ")


@EVERY_EXAMPLE
def test_an_example_is_a_program(name):
    said = run(f"{name}.py", "--help")
    assert f"python examples/{name}.py" in said


@pytest.mark.slow
def test_the_comparison_says_that_curves_are_equal():
    said = run(
        "compare.py", "--only", "pinn", "--ways", "foregrad", "--backends", "eager", "--steps", "3", "--rounds", "1"
    )
    row = next(line for line in said.splitlines() if "foregrad, eager" in line)
    assert [cell.strip() for cell in row.split("│")][5] == "0"


def run(script: str, *options: str) -> str:
    command = [sys.executable, FOLDER / script, *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stdout
