"""`python -m tests.conformance [ops|modules|architectures|libraries|transformers|all]`: run sweeps and print what they
found.

`all` leaves out libraries, which `make libraries` installs. `libraries` includes `transformers`.
"""

import argparse
import dataclasses
import fnmatch
import json
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from . import judge
from .judge import Compile, Result, Status, Sweep

TIME_LIMIT = 180
SWEEPS = ("ops", "modules", "architectures")
TOGETHER = {"all": SWEEPS, "libraries": ("libraries", "transformers")}
SUBJECTS = {
    "foregrad": judge.foregrad,
    "foregrad-default": judge.foregrad_default,
    "torch-fullgraph": judge.torch_fullgraph,
    "torch-default": judge.torch_default,
    "eager": judge.eager,
}


#: The same with `--dynamic`.
DYNAMIC = {"foregrad": judge.foregrad_dynamic, "foregrad-default": judge.foregrad_default_dynamic}


def main() -> int:
    options = _parse()
    console = Console()
    results: list[Result] = []
    for title in TOGETHER.get(options.sweep, (options.sweep,)):
        started = time.monotonic()
        results += _run(_sweep(title), options, console)
        console.print(f"{title}: {time.monotonic() - started:.0f} s")
    _print(results, console)
    if options.dynamic and options.jobs == 1:
        captures = [capture for compiled in judge.DYNAMIC for capture in compiled.captures]
        count = sum(capture.conditions is not None for capture in captures)
        console.print(f"sizes vary in {count} of {len(captures)} captured programs")
    return 1 if any(result.status is Status.FAILED for result in results) else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("sweep", nargs="?", default="all", choices=(*SWEEPS, "libraries", "transformers", "all"))
    parser.add_argument("--only", metavar="NAME", help="a name or a pattern such as 'nn.functional.*'")
    parser.add_argument("--sample", metavar="N", type=int, default=1, help="every Nth name")
    parser.add_argument("--jobs", metavar="N", type=int, default=1, help="worker processes")
    parser.add_argument("--subject", choices=tuple(SUBJECTS), default="foregrad", help="eager checks the harness")
    parser.add_argument("--dynamic", action="store_true", help="let all sizes of arguments vary")
    parser.add_argument(
        "--results", metavar="FILE", help="add a line of JSON for each; names that have one are left out"
    )
    options = parser.parse_args()
    if options.dynamic and options.subject not in DYNAMIC:
        parser.error(f"--dynamic is for {' and '.join(DYNAMIC)}")
    return options


def _sweep(title: str) -> Sweep:
    """Imported when asked for: `transformers` is slow to import and may be missing."""
    if title == "ops":
        from .ops import SWEEP
    elif title == "modules":
        from .modules import SWEEP
    elif title == "libraries":
        from .libraries import SWEEP
    elif title == "transformers":
        from .transformers_models import SWEEP
    else:
        from .architectures import SWEEP
    return SWEEP


def _run(sweep: Sweep, options: argparse.Namespace, console: Console) -> list[Result]:
    names = sweep.names()[:: options.sample]
    if options.only:
        names = tuple(fnmatch.filter(sweep.names(), options.only))
    compile_fn = DYNAMIC[options.subject] if options.dynamic else SUBJECTS[options.subject]
    known = _known(options.results)
    names = tuple(name for name in names if name not in known)
    run = _in_turn(sweep.title, names, compile_fn)
    if options.jobs > 1:
        run = _side_by_side(sweep.title, names, compile_fn, options.jobs)
    results: list[Result] = []
    columns = (
        TextColumn(sweep.title),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=len(names))
        for name, found in run:
            results += found
            if options.results:
                _keep(found, options.results)
            progress.update(task, advance=1, description=escape(name))
    return sorted(results, key=lambda result: (result.group, result.name))


def _known(path: str | None) -> set[str]:
    """Names whose results an earlier run has kept: a long sweep goes on where it was stopped."""
    if path is None or not Path(path).exists():
        return set()
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return {name for row in rows for name in (row["name"], f"{row['group']} {row['name']}")}


def _keep(found: list[Result], path: str) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(dataclasses.asdict(result)) + "\n" for result in found)


def check(title: str, name: str, compile_fn: Compile) -> list[Result]:
    """Check one name on one thread, so that sums have one order."""
    torch.set_num_threads(1)
    started = time.monotonic()
    with warnings.catch_warnings(), judge.time_limit(TIME_LIMIT):
        warnings.simplefilter("ignore")
        found = list(_sweep(title).check(name, compile_fn))
    return [dataclasses.replace(result, seconds=time.monotonic() - started) for result in found]


def _in_turn(title: str, names: tuple[str, ...], compile_fn: Compile) -> Iterator[tuple[str, list[Result]]]:
    for name in names:
        yield name, check(title, name, compile_fn)


def _side_by_side(
    title: str, names: tuple[str, ...], compile_fn: Compile, jobs: int
) -> Iterator[tuple[str, list[Result]]]:
    """In a pool of processes; after a crash the unfinished names run one by one, to find the cause."""
    unfinished = set(names)
    try:
        for name, found in _in_pool(title, names, compile_fn, jobs):
            unfinished.remove(name)
            yield name, found
    except BrokenProcessPool:
        for name in sorted(unfinished):
            try:
                yield from _in_pool(title, (name,), compile_fn, 1)
            except BrokenProcessPool:
                yield name, [Result(title, name, Status.FAILED, "the process crashed")]


def _in_pool(title: str, names: tuple[str, ...], compile_fn: Compile, jobs: int) -> Iterator[tuple[str, list[Result]]]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        running = {pool.submit(check, title, name, compile_fn): name for name in names}
        for future in as_completed(running):
            yield running[future], future.result()


def _print(results: list[Result], console: Console) -> None:
    for status in (Status.EXCLUDED, Status.REFUSED, Status.FAILED):
        for result in results:
            if result.status is status:
                console.print(f"{status} {result.group}: {result.name}: {result.reason}", markup=False, soft_wrap=True)
    partly = [result for result in results if result.excluded and result.status is not Status.EXCLUDED]
    for result in partly:
        count, first = len(result.excluded), result.excluded[0]
        text = f"{count} samples excluded {result.group}: {result.name}: {first}"
        console.print(text, markup=False, soft_wrap=True)
    console.print(_table(results))


def _table(results: list[Result]) -> Table:
    table = Table("sweep", *Status, "samples", "left out")
    for group in dict.fromkeys(result.group for result in results):
        members = [result for result in results if result.group == group]
        counts = Counter(result.status for result in members)
        compared = sum(result.num_compared for result in members)
        excluded = sum(len(result.excluded) for result in members)
        table.add_row(group, *(str(counts[status]) for status in Status), str(compared), str(excluded))
    return table


if __name__ == "__main__":
    sys.exit(main())
