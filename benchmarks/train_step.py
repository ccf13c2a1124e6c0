"""Time of a whole training step with AdamW: foregrad, torch.compile in its ways, eager, and JAX, in one run.

python benchmarks/train_step.py [--only gpt lstm] [--ways foregrad JAX] [--backends inductor aoti] [--clock wall]
                                [--json FILE] [--markdown docs/train-step.md]
python benchmarks/train_step.py --figures FILES --markdown docs/train-step.md       # write again, measure nothing

Every way starts from the same weights, in a process of its own that times itself when its turn comes in a round, and
its first losses are compared with eager's. JAX has an environment of its own (.venv-jax, made when it is missing). The
fastest way of each side counts.
"""

import argparse
import json
import statistics
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import jax_side
import torch
from measure import Timing, add_options, interleave_timers, machine, start, table, verdict, write_below
from rich.console import Console
from rich.markup import escape
from rich.text import Text
from training_ways import COMPILED_MODEL, EAGER, OPTAX, TORCH, ours
from worker import Failed, Worker

WORKLOADS = ("mlp-small", "mlp-large", "gpt", "resnet", "lstm", "blocks-100")
TINY = "mlp-small"
# the first word of a way is its side
OURS, TORCH_SIDE, JAX = "foregrad", ("eager", "torch.compile"), "JAX"
PEERS = (*TORCH_SIDE, JAX)
RATIOS = {"best of torch / foregrad": TORCH_SIDE, "JAX / foregrad": (JAX,), "best peer / foregrad": PEERS}
TORCH_WORKER, JAX_WORKER = "torch_worker.py", "jax_worker.py"
LOSSES = 3
SECONDS_A_TURN = 0.3
AGREE = 1e-3
MARK = "<!-- below this line the page is written by benchmarks/train_step.py -->\n"


@dataclass(frozen=True)
class Measured:
    """A workload by way: seconds of a step, how far the first losses are from eager's; and which ways fail, and why."""

    name: str
    times: dict[str, Timing]
    differences: dict[str, float]
    failed: dict[str, str]

    def best(self, *sides: str) -> float | None:
        """Seconds of the fastest way of these sides."""
        return min((timing.median for way, timing in self.times.items() if way.startswith(sides)), default=None)

    def speed(self, *sides: str) -> float | None:
        """How many times as fast foregrad is as the fastest way of these sides."""
        ours, theirs = self.best(OURS), self.best(*sides)
        return theirs / ours if ours and theirs else None


def main() -> None:
    options = arguments()
    if options.figures:
        console = Console(width=130)
        figures = together([json.loads(file.read_text()) for file in options.figures])
    else:
        console = start(options)
        figures = measure_all(options, console)
    results = [Measured(**w | {"times": {k: Timing(**t) for k, t in w["times"].items()}}) for w in figures["workloads"]]
    console.print(figures["machine"])
    print_results(results, console)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.markdown:
        write_page(options.markdown, figures, results)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--only", nargs="+", choices=WORKLOADS, default=WORKLOADS, metavar="WORKLOAD")
    parser.add_argument("--ways", nargs="+", default=[""], metavar="PART", help="ways whose names have one of these")
    parser.add_argument("--backends", nargs="+", default=["inductor", "aoti"], help="foregrad's")
    parser.add_argument("--python", type=Path, help="a Python with jax and optax, in place of .venv-jax")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="a page that they are written into")
    parser.add_argument("--figures", type=Path, nargs="+", help="figures of earlier runs, in place of measuring")
    options = parser.parse_args()
    options.jax = is_asked(JAX, options)
    return options


def together(parts: list[dict]) -> dict:
    """The figures of runs of some workloads each, made on one machine in the same way."""
    first = parts[0]
    if any(
        {**part, "workloads": None, "rounds": None} != {**first, "workloads": None, "rounds": None} for part in parts
    ):
        raise SystemExit("these figures were not made in the same way")
    rounds = min(part["rounds"] for part in parts)
    return {**first, "rounds": rounds, "workloads": [workload for part in parts for workload in part["workloads"]]}


# -- measuring --------------------------------------------------------------------------------------------


def measure_all(options: argparse.Namespace, console: Console) -> dict:
    versions = {"torch": torch.__version__}
    if options.jax:
        with console.status("an environment with JAX"):
            options.python = options.python or jax_side.environment()
        with Worker(options.python, JAX_WORKER, options.threads) as worker:
            versions |= worker.versions
    results = [measure(name, options, console) for name in options.only]
    return {
        "machine": machine(),
        "versions": versions,
        "threads": options.threads,
        "clock": options.clock,
        "rounds": options.rounds,
        "workloads": [asdict(result) for result in results],
    }


def measure(name: str, options: argparse.Namespace, console: Console) -> Measured:
    begun: dict[str, Worker] = {}
    losses: dict[str, list[float]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as workers:
        for way in asked(name, options):
            with console.status(f"{name}: first steps of {way}"):
                try:
                    worker = workers.enter_context(worker_for(way, options))
                    load(worker, name, way)
                    losses[way] = worker.losses(LOSSES)
                    begun[way] = worker
                except Failed as failure:
                    failed[way] = str(failure)
                    console.print(f"[red]{name}: {way}: {escape(failed[way])}[/]")
        calls = {way: calls_a_round(worker, options.clock) for way, worker in begun.items()}
        timers = {way: partial(worker.seconds, calls[way], options.clock) for way, worker in begun.items()}
        times = interleave_timers(timers, rounds=options.rounds, title=name)
    differences = {way: largest_difference(values, losses[EAGER]) for way, values in losses.items()}
    return Measured(name, times, differences, failed)


def asked(name: str, options: argparse.Namespace) -> list[str]:
    """Every way that is asked for, and eager, which the others are compared with."""
    ways = [*TORCH, *ours(options.backends), *(f"{JAX}: {way}" for way in jax_side.ways_of(name))]
    return [way for way in ways if way == EAGER or is_asked(way, options)]


def is_asked(way: str, options: argparse.Namespace) -> bool:
    return any(part in way for part in options.ways)


def worker_for(way: str, options: argparse.Namespace) -> Worker:
    if way.startswith(JAX):
        return Worker(options.python, JAX_WORKER, options.threads)
    return Worker(sys.executable, TORCH_WORKER, options.threads)


def load(worker: Worker, name: str, way: str) -> None:
    if way.startswith(JAX):
        jax_side.load(worker, name, way.removeprefix(f"{JAX}: "), **OPTAX)
    else:
        worker.load(workload=name, way=way)


def calls_a_round(worker: Worker, clock: str) -> int:
    """So many calls that a turn is long enough for the clock, and for a process that another one has interrupted."""
    once = statistics.median(worker.seconds(1, clock) for _ in range(3))
    return max(1, round(SECONDS_A_TURN / once))


def largest_difference(losses: list[float], reference: list[float]) -> float:
    """As a part of the first loss: at the end of a quick descent all losses are small."""
    return max(abs(a - b) for a, b in zip(losses, reference, strict=True)) / abs(reference[0])


# -- telling ----------------------------------------------------------------------------------------------


def print_results(results: list[Measured], console: Console) -> None:
    head, *rows = cells(results)
    shown = table("Milliseconds a step", *head)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    for line in verdicts(results):
        console.print(line)


def cells(results: list[Measured]) -> list[list[str]]:
    """The table: a row for each way, one for each ratio, and how far the first losses are apart."""
    ways = list(dict.fromkeys(way for r in results for way in (*r.times, *r.failed)))
    rows = [["", *(r.name for r in results)]]
    rows += [[way, *(time_cell(r, way) for r in results)] for way in ways]
    for title, sides in RATIOS.items():
        rows.append([title, *(f"{ratio:.2f}" if (ratio := r.speed(*sides)) else "" for r in results)])
    rows.append(["losses off eager's by at most", *(f"{max(r.differences.values()):.0e}" for r in results)])
    return rows


def time_cell(measured: Measured, way: str) -> str:
    if way in measured.failed:
        return "fails"
    return measured.times[way].text(1e-3) if way in measured.times else ""


def verdicts(results: list[Measured]) -> list[str]:
    """What is aimed at, against what was measured."""
    lines = []
    for r in results:
        if r.name == TINY and r.best(OURS):
            if COMPILED_MODEL in r.times:
                ratio = r.times[COMPILED_MODEL].median / r.best(OURS)
                lines.append(f"{TINY}: times as fast as {COMPILED_MODEL}: {verdict(ratio, at_least=4)}")
            if ratio := r.speed(JAX):
                lines.append(f"{TINY}: times as fast as {JAX}: {verdict(ratio, at_least=1)}")
    speeds = {r.name: speed for r in results if (speed := r.speed(*PEERS))}
    if speeds:
        worst = min(speeds, key=speeds.__getitem__)
        mean = statistics.geometric_mean(speeds.values())
        lines.append(f"least gain over the best peer ({worst}): {verdict(speeds[worst], at_least=1)}")
        lines.append(f"geometric mean of {len(speeds)} workloads: {verdict(mean, at_least=1.3)}")
    apart = max(max(r.differences.values()) for r in results)
    is_equal = "[green]yes[/]" if apart < AGREE else "[red]no[/]"
    lines.append(f"the first {LOSSES} losses of every way are eager's to {AGREE:g} of the first one: {is_equal}")
    return lines


def write_page(path: Path, figures: dict, results: list[Measured]) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in figures["versions"].items())
    said = [
        f"{figures['machine']}; {versions}; {figures['threads']} thread(s), {figures['clock']} time.",
        f"Milliseconds a step, median of {figures['rounds']} interleaved rounds ± quartile distance.",
    ]
    notes = [Text.from_markup(line).plain for line in verdicts(results)]
    notes += [f"{r.name}: {way} fails: {why}" for r in results for way, why in r.failed.items()]
    write_below(path, MARK, said, cells(results), notes)


if __name__ == "__main__":
    main()
