"""python -m tests.fuzz: run many random programs, show one, or shrink one."""

from __future__ import annotations

import argparse
import collections
import sys

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tests.fuzz.check import FINE
from tests.fuzz.generate import TABLES, program
from tests.fuzz.program import FuzzProgram
from tests.fuzz.run import TARGETS, results, verdict_of
from tests.fuzz.shrink import cause, shrink
from tests.fuzz.statements import WRITES


def main() -> int:
    options = parse()
    torch.set_num_threads(1)
    if options.show is not None:
        print(program(options.show, options.about).source())
        return 0
    if options.shrink is not None:
        return print_shrunk(program(options.shrink, options.about), options.against)
    seeds = range(options.start, options.start + options.count)
    verdicts = run(seeds, options.about, options.against, options.jobs)
    failed = {seed: verdict for seed, verdict in verdicts.items() if not verdict.startswith(FINE)}
    print_causes(verdicts, options.about)
    if len(seeds) == 1:
        print(*verdicts.values())
    if options.kinds:
        print_kinds(seeds, options.about)
    return 1 if failed else 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="number of programs")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--about", choices=sorted(TABLES), default="views", help="what the programs are about")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--against", choices=sorted(TARGETS), default="foregrad", help="what compiles the program")
    parser.add_argument("--kinds", action="store_true", help="count the kinds of statement")
    parser.add_argument("--show", type=int, metavar="SEED", help="print a program")
    parser.add_argument("--shrink", type=int, metavar="SEED", help="print the smallest program that still fails alike")
    return parser.parse_args()


def run(seeds: range, about: str, against: str, jobs: int) -> dict[int, str]:
    """The seeds that did not pass, with their verdicts."""
    verdicts: dict[int, str] = {}
    fine = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("running", total=len(seeds))
        for done, (seed, verdict) in enumerate(results(seeds, about, against, jobs), 1):
            if verdict is not None:
                verdicts[seed] = verdict
                fine += verdict.startswith(FINE)
            counts = f"passed {done - len(verdicts)}  failed {len(verdicts) - fine}  refused or documented {fine}"
            progress.update(task, advance=1, description=counts)
    print(counts)
    return verdicts


def print_causes(verdicts: dict[int, str], about: str) -> None:
    """Failures by cause, most frequent first, with the seeds of the shortest programs."""
    by_cause = collections.defaultdict(list)
    for seed, verdict in verdicts.items():
        by_cause[cause(verdict)].append(seed)
    for name, seeds in sorted(by_cause.items(), key=lambda item: -len(item[1])):
        shortest = sorted(seeds, key=lambda seed: len(program(seed, about).body))
        print(f"{len(seeds):5}  {name}\n       seeds {' '.join(map(str, shortest[:8]))}")


def print_kinds(seeds: range, about: str) -> None:
    programs = [program(seed, about) for seed in seeds]
    kinds = collections.Counter(statement.kind for p in programs for statement in p.body)
    for name, count in kinds.most_common():
        print(f"{count:7}  {name}")
    written = sum(any(statement.kind in WRITES for statement in p.body) for p in programs)
    print(f"{written / len(programs):7.0%}  of the programs write in place")


def print_shrunk(failing: FuzzProgram, against: str) -> int:
    smallest = shrink(failing, lambda candidate: verdict_of(candidate, against))
    print(smallest.source())
    print(verdict_of(smallest, against))
    return 0


if __name__ == "__main__":
    sys.exit(main())
