"""Timing that survives a shared machine: interleaved rounds, medians and their spread."""

import argparse
import gc
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

CLOCKS: dict[str, Callable[[], float]] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass(frozen=True)
class Timing:
    """Seconds of each round, in order."""

    rounds: tuple[float, ...]

    @property
    def first(self) -> float:
        return self.rounds[0]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    @property
    def spread(self) -> float:
        """The distance between the quartiles, as a part of the median."""
        if len(self.rounds) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.rounds, n=4, method="inclusive")
        return (high - low) / self.median

    def text(self, unit: float, digits: int = 2) -> str:
        return f"{self.median / unit:.{digits}f} ±{self.spread:.0%}"


def add_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="cpu", help="CPU time of the process, or wall time")
    parser.add_argument("--threads", type=int, default=1)


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    clock: str = "cpu",
    calls: int = 1,
    title: str = "",
) -> dict[str, Timing]:
    """Seconds of one call. Every round times all candidates, so that a slow minute slows all of them."""
    timers = {name: partial(seconds_of, call, calls, clock=clock) for name, call in candidates.items()}
    return interleave_timers(timers, rounds=rounds, title=title)


def interleave_timers(timers: Mapping[str, Callable[[], float]], *, rounds: int, title: str = "") -> dict[str, Timing]:
    """The same for candidates that time themselves, and say what one call took."""
    seconds: dict[str, list[float]] = {name: [] for name in timers}
    for _ in track(range(rounds), description=title, transient=True, disable=not title):
        for name, timer in timers.items():
            gc.collect()
            seconds[name].append(timer())
    return {name: Timing(tuple(times)) for name, times in seconds.items()}


def seconds_of(call: Callable[[], object], calls: int, *, clock: str) -> float:
    now = CLOCKS[clock]
    start = now()
    for _ in range(calls):
        result = call()
    seconds = (now() - start) / calls
    del result  # what the last call made goes after the clock is read
    return seconds


def verdict(value: float, *, at_most: float | None = None, at_least: float | None = None) -> str:
    """The value, the target, and whether it is met."""
    is_met = (at_most is None or value <= at_most) and (at_least is None or value >= at_least)
    target = f"at most {at_most:g}" if at_most is not None else f"at least {at_least:g}"
    return f"[{'green' if is_met else 'red'}]{value:.2f}[/] ({target})"


def machine() -> str:
    """The processor, its cores, the memory and the system."""
    cpu = platform.processor() or platform.machine()
    if (path := Path("/proc/cpuinfo")).exists():
        found = re.search(r"^model name\s*: (.+)$", path.read_text(), re.MULTILINE)
        cpu = found[1] if found else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


def start(options: argparse.Namespace) -> Console:
    """Set the number of threads, say how the times are taken."""
    torch.set_num_threads(options.threads)
    terminal = Console()
    console = terminal if terminal.is_terminal else Console(width=130)
    console.print(
        f"torch {torch.__version__}, {options.threads} thread(s), {options.clock} time, "
        f"median of {options.rounds} interleaved rounds ±quartile distance"
    )
    return console


def table(title: str, *columns: str) -> Table:
    result = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        result.add_column(column, justify="right" if position else "left")
    return result


def write_below(path: Path, mark: str, said: list[str], cells: list[list[str]], notes: list[str]) -> None:
    """Put words, a table and notes below the mark of a page; what stands above it stays."""
    head, *rows = cells
    lines = [
        *said,
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' + '---:|' * (len(head) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
        "",
        *(f"- {note}" for note in notes),
    ]
    above = path.read_text().partition(mark)[0] if path.exists() else ""
    path.write_text(above + mark + "\n" + "\n".join(lines) + "\n")
