"""The benchmarks still run, and both say that what they time is right. How long anything takes is not looked at."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.source import ROOT


def run(script: str, *options: str) -> str:
    command = [sys.executable, ROOT / "benchmarks" / script, "--rounds", "1", "--peer", "none", "--backend", "eager"]
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=120).stdout


def test_a_step_is_timed_and_equals_eager():
    row = next(line for line in run("step.py", "--only", "mlp-small").splitlines() if "mlp-small" in line)
    assert "0e+00" in row


def test_a_question_is_timed():
    command = [sys.executable, ROOT / "benchmarks" / "questions.py", "--rounds", "1", "--only", "function"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert [line.split("│")[1].strip() for line in table(printed)] == [
        "without a question",
        "with one",
        "what it asks, by itself",
    ]


def test_sizes_that_vary_are_timed_and_equal_eager():
    first, *steps = table(run("sizes.py", "--only", "gpt-lengths", "--lengths", "3", "--timed", "1"))
    assert [cell.strip() for cell in first.split("│")][1:5:3] == ["eager", "0e+00"]
    assert [cell.strip() for cell in steps[0].split("│")][1:5:3] == ["foregrad", "0e+00"]


@pytest.mark.slow
def test_a_cold_start_is_timed_and_its_figures_are_kept(tmp_path: Path):
    figures = tmp_path / "cold.json"
    printed = run("cold.py", "--only", "blocks-1", "--json", str(figures))
    (step,) = json.loads(figures.read_text())["runs"]
    assert (step["workload"], step["side"]) == ("blocks-1", "foregrad")
    assert step["wall"] > 0
    assert step["cpu"] > 0
    again = run("cold.py", "--figures", str(figures))
    assert table(again) == table(printed)


@pytest.mark.slow
def test_policies_are_measured_and_exact_ones_change_no_gradient():
    command = [sys.executable, ROOT / "benchmarks" / "saved.py", "--rounds", "1", "--workload", "blocks-1"]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    rows = {line.split("│")[1].strip(): line for line in table(printed)}
    for exact in ("none", "save_on_cpu", "save_on_disk"):
        assert "0e+00" in rows[exact]
    assert "0e+00" not in rows["save_quantized 4 bits"]


def table(text: str) -> list[str]:
    return [line for line in text.splitlines() if "│" in line]


@pytest.mark.slow
def test_a_training_step_is_timed_and_its_figures_are_kept(tmp_path: Path):
    figures, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("# Mine\n")
    measured = ["--only", "mlp-small", "--ways", "foregrad", "--backends", "eager", "--rounds", "1"]
    printed = train_step(*measured, "--json", str(figures))
    again = train_step("--figures", str(figures), "--markdown", str(page))
    (workload,) = json.loads(figures.read_text())["workloads"]
    assert workload["failed"] == {}
    assert set(workload["differences"].values()) == {0.0}
    assert table(again) == table(printed)
    assert page.read_text().startswith("# Mine\n")
    assert "| foregrad: eager |" in page.read_text()


@pytest.mark.slow
def test_a_warm_start_is_timed_and_needs_no_tracing(tmp_path: Path):
    figures, page = tmp_path / "warm.json", tmp_path / "page.md"
    command = [sys.executable, ROOT / "benchmarks" / "warm.py"]
    measured = [
        "--only",
        "mlp-tiny",
        "--sides",
        "eager",
        "cache hit",
        "cache hit, lazy_dynamo",
        "signed artifact",
        "data-only artifact, kernels kept",
        "data-only artifact, nothing kept",
        "compiled anew, kernels kept",
        "--backend",
        "eager",
        "--rounds",
        "1",
    ]
    for options in (*measured, "--json", figures), ("--figures", figures, "--markdown", page):
        subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=240)
    runs = {run["side"]: run for run in json.loads(figures.read_text())["runs"]}
    assert len(runs) == 7
    assert all(run["losses"] == runs["eager"]["losses"] for run in runs.values())
    assert "| first step, signed artifact |" in page.read_text()
    assert "second step, data-only artifact, kernels kept / compiled anew, kernels kept" in page.read_text()


@pytest.mark.slow
def test_jax_trains_as_torch_does(tmp_path: Path):
    """Where `make bench-train` has made an environment with JAX."""
    if not (ROOT / ".venv-jax").exists():
        pytest.skip("there is no environment with JAX")
    train_step("--only", "mlp-small", "--ways", "JAX", "--rounds", "1", "--json", str(tmp_path / "figures.json"))
    (workload,) = json.loads((tmp_path / "figures.json").read_text())["workloads"]
    assert "JAX: jit" in workload["times"]
    assert max(workload["differences"].values()) < 1e-5


def train_step(*options: str) -> str:
    command = [sys.executable, ROOT / "benchmarks" / "train_step.py", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
