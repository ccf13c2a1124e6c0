"""The C++ program of the examples trains with a saved step as Python goes on with it."""

import importlib
import re
import shlex
import subprocess

import pytest
import torch

from foregrad.backends import toolchain
from tests.house.source import ROOT

FOLDER = ROOT / "examples" / "cpp"


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.slow
def test_a_program_without_python_trains(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    save, build = importlib.import_module("save"), importlib.import_module("build")
    step, data = save.build(), save.data()
    for _ in range(2):
        step(*data)
    step.save(tmp_path / "step.fg")
    here = [step(*data).item() for _ in range(20)]
    build.build(tmp_path)
    (command,) = re.findall(r"without Python: (.*)", (FOLDER / "train.cpp").read_text())  # as its first line says
    run = subprocess.run(shlex.split(command), check=True, capture_output=True, text=True, cwd=tmp_path)
    printed = run.stdout
    there = [float(line) for line in printed.split()]
    torch.testing.assert_close(torch.tensor(there), torch.tensor(here), rtol=1e-5, atol=1e-5)
    assert here[-1] < here[0] / 4
