"""Warm start: from after `import torch` to the end of the first training steps, with all caches filled.

python benchmarks/warm.py [--rounds 5] [--only gpt] [--sides eager artifact] [--json FILE] [--markdown docs/warm.md]
python benchmarks/warm.py --figures FILE --markdown docs/warm.md       # write again, measure nothing

Every run is a process of its own, `warm_step.py`, in interleaved rounds: eager, `torch.compile` with its caches filled
by an earlier process, foregrad with a cache that was filled in the same way, as it is and without an import of
torch._dynamo, foregrad with a saved step and nothing else, and JAX (`jax_first_step.py`, from after `import jax`) with
its persistent cache. A saved step is loaded with its code, which is signed, and by somebody who does not know the key:
from data, compiled there, without and with kernels that an earlier load has built; beside a step that is traced and
compiled with such kernels. The losses of the two steps are compared with eager's.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import jax_side
import torch
from measure import Timing, machine, table, verdict, write_below
from rich.console import Console
from rich.progress import track
from rich.text import Text
from worker import held_to
from workloads import build

HERE = Path(__file__).parent
WORKLOADS = ("mlp-small", "gpt", "blocks-100")
EAGER, PEER, HIT, LAZY, JAX = "eager", "torch.compile", "cache hit", "cache hit, lazy_dynamo", "JAX"
SIGNED, DATA, DATA_COLD = "signed artifact", "data-only artifact, kernels kept", "data-only artifact, nothing kept"
CLEAN = "compiled anew, kernels kept"
SIDES = (EAGER, PEER, HIT, LAZY, SIGNED, DATA, DATA_COLD, CLEAN, JAX)
STEPS = ("first", "second")
OPTAX = {"learning_rate": 1e-3, "b1": 0.9, "b2": 0.999, "eps": 1e-8, "weight_decay": 1e-2}  # AdamW's own
FOUND, WITH_CODE, FROM_DATA = "found without tracing", "the code in the file", "built here from the data"
FIFTH, OVER_EAGER, IMPORT = 0.2, 100.0, 150.0
AGREE = 1e-4
MARK = "<!-- below this line the page is written by benchmarks/warm.py -->\n"
IMPORTING = "import time, torch; t = time.perf_counter(); import foregrad; print(time.perf_counter() - t)"


@dataclass(frozen=True)
class Run:
    """One process: seconds to the end of the first two steps, and their losses."""

    workload: str
    side: str
    seconds: tuple[float, ...]
    losses: tuple[float, ...]


class Failed(Exception):
    """A run that gave no figures, or not those of a warm start."""


def main() -> None:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 130)
    figures = json.loads(options.figures.read_text()) if options.figures else measure_all(options, console)
    runs = [Run(**run) for run in figures["runs"]]
    console.print(f"{about(figures)}.")
    head, *rows = cells(runs)
    shown = table("Seconds to the end of a step", *head)
    for row in rows:
        shown.add_row(*row)
    console.print(shown)
    for line in verdicts(runs, figures["import"]):
        console.print(line)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.markdown:
        write_page(options.markdown, figures, runs)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=WORKLOADS, metavar="WORKLOAD", help="any of workloads.py")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--backend", default="inductor", help="foregrad's")
    parser.add_argument("--python", type=Path, help="a Python with jax and optax, in place of .venv-jax")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds after which a run is given up")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--markdown", type=Path, help="a page that they are written into")
    parser.add_argument("--figures", type=Path, help="figures of an earlier run, in place of measuring")
    return parser.parse_args()


# -- measuring --------------------------------------------------------------------------------------------


def measure_all(options: argparse.Namespace, console: Console) -> dict:
    sides = list(options.sides)
    if JAX in sides and not options.python:
        with console.status("an environment with JAX"):
            try:
                options.python = jax_side.environment()
            except (OSError, subprocess.CalledProcessError) as error:
                console.print(f"[yellow]JAX is left out, since it cannot be installed here: {error}[/]")
                sides.remove(JAX)
    with tempfile.TemporaryDirectory(prefix="foregrad-warm-") as root:
        runs = list(measure(sides, Path(root), options, console))
    return {
        "machine": machine(),
        "torch": torch.__version__,
        "threads": options.threads,
        "backend": options.backend,
        "rounds": options.rounds,
        "runs": [asdict(run) for run in runs],
        "import": [float(ask([sys.executable, "-c", IMPORTING], options)) for _ in range(options.rounds)],
    }


def measure(sides: list[str], root: Path, options: argparse.Namespace, console: Console) -> Iterator[Run]:
    """Fill what is to be warm, then rounds of all workloads, and each on all sides in turn."""
    plan: list[Callable[[], Run]] = []
    for name in options.only:
        folder = root / name
        folder.mkdir()
        with console.status(f"{name}: filling caches"):
            ask(worker("prepare", name, folder, options), options, places(folder))
            jax_side.write_weights(folder / "weights.npz", *build(name), **OPTAX)
            starts = [Start(name, side, folder, options) for side in sides]
            for start in starts:
                start()
        plan += starts
    for start in track(plan * options.rounds, description="warm starts", console=console, transient=True):
        run = start()
        start.check()
        yield run


class Start:
    """Starts one side of a workload, as often as it is called."""

    def __init__(self, workload: str, side: str, folder: Path, options: argparse.Namespace) -> None:
        self.workload, self.side, self.folder, self.options = workload, side, folder, options
        self.origins: list[str] = []
        self.how = ""

    def __call__(self) -> Run:
        if self.side == JAX:
            way = jax_side.ways_of(self.workload)[-1]
            command = [self.options.python, HERE / "jax_first_step.py", self.folder / "weights.npz", self.workload, way]
            told = ask(command, self.options, jax_places(self.folder), **held_to(self.options.threads))
        else:
            with tempfile.TemporaryDirectory(dir=self.folder) as empty:
                command = worker(self.side, self.workload, self.folder, self.options)
                told = ask(command, self.options, places(self.folder) | self.kept(Path(empty)))
        found = json.loads(told)
        self.origins, self.how = found["origins"], found["how"]
        return Run(self.workload, self.side, tuple(found["seconds"]), tuple(found["losses"]))

    def kept(self, empty: Path) -> dict[str, str]:
        """The folders in which a side finds something else than all others do."""
        own = self.folder / ("data" if self.side == DATA else "anew")
        stranger = {"FOREGRAD_CONFIG_DIR": str(empty / "config")}  # who has saved the step is not known there
        return {
            SIGNED: {"FOREGRAD_CACHE_DIR": str(empty)},  # it comes to a machine that has nothing else
            DATA_COLD: kernels(empty) | stranger,
            DATA: kernels(own) | stranger,
            CLEAN: kernels(own),
        }.get(self.side, {})

    def check(self) -> None:
        """Whether the last start was what it is said to be."""
        expected = {SIGNED: WITH_CODE, DATA: FROM_DATA, DATA_COLD: FROM_DATA}.get(self.side, "")
        if not self.how.startswith(expected):
            raise Failed(f"{self.workload}: {self.side} is {self.how!r}, not {expected!r}")
        if self.side in (HIT, LAZY) and self.origins != [FOUND] * len(STEPS):
            raise Failed(f"{self.workload}: captures of a {self.side} are {self.origins}, not {FOUND!r}")


def worker(side: str, workload: str, folder: Path, options: argparse.Namespace) -> list:
    return [sys.executable, HERE / "warm_step.py", side, workload, folder, str(options.threads), options.backend]


def places(folder: Path) -> dict[str, str]:
    return kernels(folder) | {
        "FOREGRAD_CONFIG_DIR": str(folder / "config"),  # the key that signs
        "FOREGRAD_CACHE": "off",  # but for the cache that is given by name
    }


def kernels(folder: Path) -> dict[str, str]:
    """Where compiled kernels are kept."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "FOREGRAD_CACHE_DIR": str(folder / "foregrad")}


def jax_places(folder: Path) -> dict[str, str]:
    """Where JAX keeps what it compiles, however small and quick."""
    return {
        "JAX_COMPILATION_CACHE_DIR": str(folder / "jax"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }


def ask(command: list, options: argparse.Namespace, places: dict[str, str] | None = None, **how: object) -> str:
    """Run a process; the last line that it prints. Python keeps bytecode, as it does of what is installed."""
    env = dict(how.pop("env", os.environ)) | (places or {})
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=options.limit, check=False, **how)
    if done.returncode:
        raise Failed(f"{' '.join(map(str, command[1:4]))} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1] if done.stdout else ""


# -- telling ----------------------------------------------------------------------------------------------


def of(runs: list[Run], name: str, side: str, step: int = 0) -> Timing | None:
    seconds = tuple(run.seconds[step] for run in runs if (run.workload, run.side) == (name, side))
    return Timing(seconds) if seconds else None


def about(figures: dict) -> str:
    return (
        f"{figures['machine']}; torch {figures['torch']}, {figures['threads']} thread(s), foregrad with "
        f"backend={figures['backend']}; medians of {figures['rounds']} interleaved rounds ± quartile distance"
    )


def cells(runs: list[Run]) -> list[list[str]]:
    """The table: a row for each side and step, and how far the losses are apart."""
    names = list(dict.fromkeys(run.workload for run in runs))
    rows = [["", *names]]
    for step, title in enumerate(STEPS):
        for side in (side for side in SIDES if any(run.side == side for run in runs)):
            times = [of(runs, name, side, step) for name in names]
            rows.append([f"{title} step, {side}", *(time.text(1.0, 3) if time else "" for time in times)])
    rows.append(["losses off eager's by at most", *(f"{apart(runs, name):.0e}" for name in names)])
    return rows


def apart(runs: list[Run], name: str) -> float:
    """The largest distance of a loss from eager's, or from the first side's where eager was left out."""
    mine = [run for run in runs if run.workload == name]
    reference = next((run for run in mine if run.side == EAGER), mine[0]).losses
    return max(abs(a - b) / abs(b) for run in mine for a, b in zip(run.losses, reference, strict=True))


def verdicts(runs: list[Run], imports: list[float]) -> list[str]:
    """What is aimed at, against what was measured."""
    lines = []
    for name in dict.fromkeys(run.workload for run in runs):
        times = {side: time.median for side in SIDES if (time := of(runs, name, side))}
        for side in (SIGNED, LAZY):
            if side in times and PEER in times:
                lines.append(f"{name}: {side} / {PEER}: {verdict(times[side] / times[PEER], at_most=FIFTH)}")
        if SIGNED in times and EAGER in times:
            over = (times[SIGNED] - times[EAGER]) * 1e3
            lines.append(f"{name}: {SIGNED} - {EAGER}, ms: {verdict(over, at_most=OVER_EAGER)}")
        data, clean = (of(runs, name, side, step=1) for side in (DATA, CLEAN))  # compiled code runs in the second
        if data and clean:
            ratio = data.median / clean.median
            lines.append(f"{name}: second step, {DATA} / {CLEAN}: {verdict(ratio, at_most=1.0)}")
        is_equal = "[green]yes[/]" if apart(runs, name) < AGREE else "[red]no[/]"
        lines.append(f"{name}: losses agree to {AGREE:g}: {is_equal}")
    lines.append(
        f"import foregrad after import torch, ms: {verdict(Timing(tuple(imports)).median * 1e3, at_most=IMPORT)}"
    )
    return lines


def write_page(path: Path, figures: dict, runs: list[Run]) -> None:
    notes = [Text.from_markup(line).plain for line in verdicts(runs, figures["import"])]
    write_below(path, MARK, [f"{about(figures)}. Seconds."], cells(runs), notes)


if __name__ == "__main__":
    main()
