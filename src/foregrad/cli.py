"""The command line: `foregrad demo` and `foregrad doctor`."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import click
import torch
from rich.console import Console
from rich.table import Table

from foregrad.backends import toolchain
from foregrad.demo import run
from foregrad.words.folders import cache_folder

TESTED_TORCH = "2.13"


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="foregrad")
def main() -> None:
    """Ahead-of-time autograd for PyTorch."""


@main.command()
@click.option("--steps", default=150, show_default=True, type=click.IntRange(min=2), help="Training steps.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights, batches and dropout.")
def demo(steps: int, seed: int) -> None:
    """Train a small transformer: eager, captured and compiled side by side."""
    if not run(Console(), steps=steps, seed=seed):
        raise click.ClickException("a run differs from the eager one")


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
    return [python(), torch_version(), threads(), accelerator(), *compilers(), caches()]


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


def compilers() -> list[Finding]:
    """The C++ compiler, and what it can build for: found out now if it never was, which takes seconds."""
    found = toolchain.compiler()
    if found is None:
        meaning = 'backend="eager" needs none; "inductor" and "aoti" cannot run'
        return [Finding("C++ compiler", "none", False, meaning)]
    best = next(iter(toolchain.prepare().instruction_sets), None)
    meaning = 'used by backend="inductor" and "aoti", not by "eager"'
    return [
        Finding("C++ compiler", f"{found}, {toolchain.version_text(found)}", True, meaning),
        Finding(
            "vector instructions", best or "none", best is not None, "" if best else "loops run one value at a time"
        ),
    ]


def caches() -> Finding:
    folder = cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files) / 1e6
    meaning = "precompiled headers and libraries; FOREGRAD_CACHE_DIR moves it"
    return Finding("cache", f"{folder}, {size:.0f} MB", True, meaning)


if __name__ == "__main__":
    main()
