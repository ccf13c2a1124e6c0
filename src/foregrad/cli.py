"""The command line: `foregrad demo` and `foregrad doctor`."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass

import click
import torch
from rich.console import Console
from rich.table import Table

from foregrad.demo import run

TESTED_TORCH = "2.13"
COMPILERS = ("c++", "g++", "clang++")


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="foregrad")
def main() -> None:
    """Ahead-of-time autograd for PyTorch."""


@main.command()
@click.option("--steps", default=150, show_default=True, type=click.IntRange(min=2), help="Training steps.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights, batches and dropout.")
def demo(steps: int, seed: int) -> None:
    """Train a small transformer, eager and captured side by side."""
    if not run(Console(), steps=steps, seed=seed):
        raise click.ClickException("the captured run differs from the eager one")


@main.command()
def doctor() -> None:
    """Say what this machine has, what is missing, and what that costs."""
    findings = examine()
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("")
    table.add_column("what it means", style="dim")
    for finding in findings:
        mark = "[green]ok[/]" if finding.is_fine else "[yellow]--[/]"
        table.add_row(mark, f"{finding.name} {finding.value}", finding.meaning)
    Console().print(table)


@dataclass(frozen=True)
class Finding:
    """One fact about this machine and what follows from it."""

    name: str
    value: str
    is_fine: bool
    meaning: str


def examine() -> list[Finding]:
    """What `foregrad doctor` prints, as data."""
    return [python(), torch_version(), threads(), accelerator(), compiler()]


def python() -> Finding:
    return Finding("Python", platform.python_version(), True, "")


def torch_version() -> Finding:
    is_tested = torch.__version__.split("+")[0].rpartition(".")[0] == TESTED_TORCH
    meaning = "" if is_tested else f"tested with torch {TESTED_TORCH}, whose private parts it uses"
    return Finding("torch", torch.__version__, is_tested, meaning)


def threads() -> Finding:
    meaning = "inside an op; capture and the code between ops use one"
    return Finding("threads", str(torch.get_num_threads()), True, meaning)


def accelerator() -> Finding:
    if not torch.accelerator.is_available():
        return Finding("accelerator", "none", True, "everything runs on the CPU")
    device = str(torch.accelerator.current_accelerator())
    return Finding("accelerator", device, False, "foregrad is tested on the CPU only")


def compiler() -> Finding:
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        meaning = 'backend="eager" needs none and loses nothing; backends that generate C++ cannot run'
        return Finding("C++ compiler", "none", False, meaning)
    return Finding("C++ compiler", found, True, 'not used by backend="eager"')


if __name__ == "__main__":
    main()
