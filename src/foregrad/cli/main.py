"""The command line: `foregrad demo`, `doctor`, `show`, `cache`, `trust` and others.

Each command imports what it needs, so that those which need no torch do not wait for it.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from foregrad.cache.format import show as shown
from foregrad.cache.format.keys import key_from_environment, key_from_file
from foregrad.cache.format.show import printable
from foregrad.cache.store.seal import seal_length
from foregrad.cli.cache import cache
from foregrad.cli.progress import Progress
from foregrad.cli.trust import sign, trust, verify
from foregrad.core.errors import CorruptArtifact


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="foregrad")
def main() -> None:
    """Ahead-of-time autograd for PyTorch."""


for command in (cache, trust, sign, verify):
    main.add_command(command)


@main.command()
@click.option("--steps", default=150, show_default=True, type=click.IntRange(min=2), help="Training steps.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights, batches and dropout.")
def demo(steps: int, seed: int) -> None:
    """Train a small transformer: eager, captured and compiled side by side."""
    from foregrad.cli.demo import run

    if not run(Console(), steps=steps, seed=seed):
        raise click.ClickException("a run differs from the eager one")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(as_json: bool) -> None:
    """Say what this machine has, what is missing, and what that costs."""
    from foregrad.cli.doctor import examine

    findings = examine()
    if as_json:
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("")
    table.add_column("what it means", style="dim")
    for finding in findings:
        mark = Text("ok", "green") if finding.is_fine else Text("--", "yellow")
        table.add_row(
            mark, Text(f"{finding.name} {finding.value}"), Text(finding.meaning)
        )  # no markup: `foregrad[trust]`
    Console().print(table)


@main.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with a key to trust.")
@click.option("--program", is_flag=True, help="Print the listings of the programs too.")
@click.option("--all", "everything", is_flag=True, help="Print every row and line, and long ones in full.")
@click.option("--verify", "check", is_flag=True, help="Read all blobs too, and check their digests.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path, key: Path | None, program: bool, everything: bool, check: bool, as_json: bool) -> None:
    """Say what is in a .fg file, or in an entry of a cache, without running any of it.

    Only its header is read, so that a file of any size is shown at once; --verify reads all of it. Signatures are
    checked if there is a key, from --key or FOREGRAD_CACHE_KEY. Fails if anything is wrong.
    """
    try:
        given = key_from_file(key) if key else key_from_environment()
        with Progress(f"reading {printable(str(file))}") as progress:
            keys = (given,) if given else ()
            report = shown.examine(file, keys, start=seal_length(file), told=progress.add if check else None)
    except (CorruptArtifact, OSError, ValueError, ModuleNotFoundError) as error:
        if as_json:
            click.echo(json.dumps({"file": str(file), "problems": [str(error)]}, indent=2))
            raise SystemExit(1) from None
        raise click.ClickException(printable(str(error))) from None
    if as_json:
        click.echo(json.dumps(report.as_json(), indent=2))
    else:
        for line in report.lines(listing=program, everything=everything):
            click.secho(line, bold=not line.startswith(" "), fg="red" if line.startswith("problem") else None)
    if report.problems:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
