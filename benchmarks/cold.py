"""Cold start: from after `import torch` to the end of the first training step, foregrad against torch.compile.

python benchmarks/cold.py [--rounds 2] [--only gpt lstm] [--peer none] [--plot docs/cold.svg]
python benchmarks/cold.py --figures docs/cold.json --plot docs/cold.svg        # draw again, measure nothing

Every run is a process of its own. Before it the caches are as two small, unrelated models leave them, on either side:
what is known about the C++ compiler is known, nothing of the measured model is. CPU seconds are those of all processes
of a run together.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Timer

import torch
from measure import Timing, table, verdict
from rich.console import Console
from rich.progress import track

HERE = Path(__file__).parent
DEPTHS, PEER_DEPTHS = (25, 50, 100, 200, 400), (25, 50, 100)
UNRELATED = ("mlp-tiny", "mlp-wide")  # foregrad makes a library of the first, and calls kernels of the second
OURS, PEER = "foregrad", "torch.compile"
HALF, FIFTH, FLAT = 0.5, 0.2, 1.3
TARGETS = {"gpt": HALF, "lstm": HALF, "blocks-100": FIFTH}
AGREE = 1e-3


@dataclass(frozen=True)
class Run:
    """One process: wall and CPU seconds to the end of the first step, and what it computed."""

    workload: str
    side: str
    wall: float
    cpu: float
    loss: float
    gradients: float


class Failed(Exception):
    """A run that gave no figures, and why."""


def main() -> None:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 130)
    if options.figures:
        figures = json.loads(options.figures.read_text())
    else:
        figures = {
            "torch": torch.__version__,
            "threads": options.threads,
            "backend": options.backend,
            "runs": [asdict(run) for run in measure(options, console)],
        }
    runs = [Run(**run) for run in figures["runs"]]
    print_results(runs, figures, console)
    kept = options.json or (options.plot and not options.figures and options.plot.with_suffix(".json"))
    if kept:
        kept.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        draw(runs, figures, options.plot)


def arguments() -> argparse.Namespace:
    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(",") if part)

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="gpt, lstm, blocks-25, ...")
    parser.add_argument("--depths", type=numbers, default=DEPTHS, help="residual blocks, as in 25,50,100")
    parser.add_argument("--peer-depths", type=numbers, default=PEER_DEPTHS, help="the same for torch.compile")
    parser.add_argument("--peer", choices=(PEER, "none"), default=PEER)
    parser.add_argument("--backend", default="inductor", help="foregrad's")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a run is given up")
    parser.add_argument("--plot", type=Path, help="an SVG of cold time against depth")
    parser.add_argument("--json", type=Path, help="where the figures go; beside the plot if not given")
    parser.add_argument("--figures", type=Path, help="figures of an earlier run, in place of measuring")
    return parser.parse_args()


# -- measuring --------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace, console: Console) -> Iterator[Run]:
    """Rounds of all workloads, and each on both sides in turn, so that a slow minute slows both."""
    names = options.only or ["gpt", "lstm", *(f"blocks-{depth}" for depth in options.depths)]
    sides = [OURS] if options.peer == "none" else [OURS, PEER]
    left_out = set() if options.only else {f"blocks-{d}" for d in set(options.depths) - set(options.peer_depths)}
    plan = [(name, side) for name in names for side in sides if side == OURS or name not in left_out]
    with warm_caches(sides, options) as caches:
        for name, side in track(plan * options.rounds, description="cold starts", console=console, transient=True):
            caches.restore(side)
            try:
                yield first_step(name, side, caches.folder(side), options)
            except Failed as error:
                console.print(f"[red]{error}[/]")


@dataclass(frozen=True)
class Caches:
    """A folder for each side, and a copy of how it was after the unrelated models."""

    root: Path

    def folder(self, side: str) -> Path:
        return self.root / side / "now"

    def keep(self, side: str) -> None:
        shutil.copytree(self.folder(side), self.root / side / "kept", symlinks=True)

    def restore(self, side: str) -> None:
        shutil.rmtree(self.folder(side))
        shutil.copytree(self.root / side / "kept", self.folder(side), symlinks=True)


@contextmanager
def warm_caches(sides: list[str], options: argparse.Namespace) -> Iterator[Caches]:
    with tempfile.TemporaryDirectory(prefix="foregrad-cold-") as root:
        caches = Caches(Path(root))
        for side in sides:
            caches.folder(side).mkdir(parents=True)
            for workload in UNRELATED:
                first_step(workload, side, caches.folder(side), options)
            caches.keep(side)
        yield caches


def first_step(workload: str, side: str, caches: Path, options: argparse.Namespace) -> Run:
    """Run benchmarks/first_step.py."""
    places = {"TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"), "FOREGRAD_CACHE_DIR": str(caches / "foregrad")}
    command = [sys.executable, HERE / "first_step.py", workload, side, str(options.threads), options.backend]
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command, env=os.environ | places | {"FOREGRAD_CACHE": "off"}, stdout=output, start_new_session=True
        )
        limit = Timer(options.limit, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        _, status, used = os.wait4(process.pid, 0)  # with the processes that it has started and waited for
        is_over = not limit.is_alive()
        limit.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        if is_over:
            raise Failed(f"{workload}: {side} took more than {options.limit:.0f} s and was given up")
        if process.returncode:
            raise Failed(f"{workload}: {side} ended with status {process.returncode}")
        output.seek(0)
        told = json.loads(output.read().splitlines()[-1])
    cpu = used.ru_utime + used.ru_stime - told.pop("cpu_before")
    return Run(workload, side, cpu=cpu, **told)


# -- results ----------------------------------------------------------------------------------------------


def print_results(runs: list[Run], figures: dict, console: Console) -> None:
    console.print(
        f"torch {figures['torch']}, {figures['threads']} thread(s), foregrad with backend={figures['backend']}; "
        "medians ±quartile distance"
    )
    heads = ("wall, s\nforegrad", "wall, s\ntorch.compile", "CPU, s\nforegrad", "CPU, s\ntorch.compile")
    rows = table("Cold start to the end of the first step", "", *heads, "wall ratio", "CPU ratio", "results differ by")
    for name in dict.fromkeys(run.workload for run in runs):
        cells = [of(runs, name, side, clock) for clock in ("wall", "cpu") for side in (OURS, PEER)]
        texts = [cell.text(1.0, 1) if cell else "" for cell in cells]
        ratios = [ratio(ours, theirs, name) for ours, theirs in (cells[:2], cells[2:])]
        rows.add_row(name, *texts, *ratios, disagreement(runs, name))
    console.print(rows)
    for clock in ("wall", "cpu"):
        deep, shallow = (of(runs, name, OURS, clock) for name in ("blocks-100", "blocks-25"))
        if deep and shallow:
            console.print(
                f"foregrad, 100 blocks / 25 blocks, {clock}:", verdict(deep.median / shallow.median, at_most=FLAT)
            )


def of(runs: list[Run], name: str, side: str, clock: str) -> Timing | None:
    seconds = tuple(getattr(run, clock) for run in runs if (run.workload, run.side) == (name, side))
    return Timing(seconds) if seconds else None


def ratio(ours: Timing | None, theirs: Timing | None, name: str) -> str:
    if not ours or not theirs:
        return ""
    value = ours.median / theirs.median
    return verdict(value, at_most=TARGETS[name]) if name in TARGETS else f"{value:.2f}"


def disagreement(runs: list[Run], name: str) -> str:
    """How far the losses and gradients of all runs of a workload are apart, relative to their size."""
    pairs = [(run.loss, run.gradients) for run in runs if run.workload == name]
    apart = max((max(values) - min(values)) / abs(values[0]) for values in zip(*pairs, strict=True))
    return f"[{'green' if apart < AGREE else 'red'}]{apart:.0e}[/]"


def draw(runs: list[Run], figures: dict, path: Path) -> None:
    """Median wall seconds against the number of residual blocks, a line for each side."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams |= {"svg.hashsalt": "foregrad", "font.size": 11}
    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    depths = sorted({int(run.workload.removeprefix("blocks-")) for run in runs if run.workload.startswith("blocks-")})
    for side, colour, marker in ((PEER, "#c44e52", "s"), (OURS, "#2f6db3", "o")):
        times = {depth: of(runs, f"blocks-{depth}", side, "wall") for depth in depths}
        points = [(depth, timing.median) for depth, timing in times.items() if timing]
        if points:
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, label=side)
            last = f"{points[-1][1]:.0f} s"
            axes.annotate(last, points[-1], (0, 8), textcoords="offset points", ha="center")
    axes.set(xlabel="residual blocks", ylabel="seconds to the end of the first step")
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    version = figures["torch"].split("+")[0]
    axes.set_title(f"Cold start (torch {version}, {figures['threads']} thread(s))", fontsize=11)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
