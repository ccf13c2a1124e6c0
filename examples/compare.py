"""The four examples with eager PyTorch, torch.compile and foregrad, in one run: loss curves, and time of a step.

python examples/compare.py [--steps 30] [--only pinn maml] [--ways foregrad] [--backends inductor eager]
                             [--markdown FILE]

torch.compile is tried on the models, on the step as it stands, on the step as one whole graph, with its switch for
autograd inside a graph on, and on the same with an optimizer written anew for it. Where it refuses, its reason is
shown; where it leaves parts to Python, they are counted (graph breaks). It is told to draw eager's random numbers, as
foregrad does.
"""

import argparse
import gc
import importlib
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from runner import Decorator, Training, losses, plain
from torch import nn
from torch._dynamo.utils import counters
from torch.optim.adam import adam

import foregrad as fg

EXAMPLES = ("pinn", "force_field", "maml", "gradient_penalty")
MARK = "<!-- below this line the page is written by examples/compare.py -->\n"
COLUMNS = ("example", "way", "loss, first", "last", "off eager's by", "ms a step", "times as fast", "graph breaks")


@dataclass(frozen=True)
class Run:
    """An example trained in one way: its loss curve and the time of a step, or why there is none."""

    way: str
    losses: tuple[float, ...] = ()
    milliseconds: float = 0.0
    speed: float = 1.0
    breaks: int = 0
    refusal: str = ""


def main() -> None:
    options = arguments()
    console = Console(width=150)
    rows = []
    for example in options.only:
        runs = []
        for way in ways(options):
            with console.status(f"{example}: {way}"):
                runs.append(in_new_process(train, example, way, options))
        rows += describe(example, runs)
    console.print(table(rows))
    if options.markdown:
        page = options.markdown
        above = page.read_text().partition(MARK)[0] if page.exists() else ""
        page.write_text(above + MARK + markdown(rows, options))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30, help="of the loss curves")
    parser.add_argument("--rounds", type=int, default=15, help="of timing")
    parser.add_argument("--only", nargs="+", choices=EXAMPLES, default=EXAMPLES, metavar="EXAMPLE")
    parser.add_argument("--ways", nargs="+", default=[""], metavar="PART", help="ways whose names have one of these")
    parser.add_argument("--backends", nargs="+", default=["inductor", "eager"], help="foregrad's")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--markdown", type=Path, help="a page that the table is written into")
    return parser.parse_args()


def ways(options: argparse.Namespace) -> dict[str, Decorator]:
    """What stands above the step in each way that is asked for; eager is what the others are compared with."""
    others = {
        "torch.compile, models": compile_models,
        "torch.compile, step": lambda *state: torch.compile,
        "torch.compile, one graph": compile_whole,
        "torch.compile, one graph, optimizer rewritten": compile_rewritten,
        **{f"foregrad, {backend}": partial(fg.step, backend=backend) for backend in options.backends},
    }
    asked = {way: make for way, make in others.items() if any(part in way for part in options.ways)}
    return {"eager": plain} | asked


def compile_models(*state: object) -> Callable:
    for module in state:
        if isinstance(module, nn.Module):
            module.forward = torch.compile(module.forward)
    return lambda step: step


def compile_whole(*state: object) -> Callable:
    torch._dynamo.config.trace_autograd_ops = True
    return partial(torch.compile, fullgraph=True)


def compile_rewritten(*state: object) -> Callable:
    for optimizer in state:
        if isinstance(optimizer, torch.optim.Adam):
            rewrite(optimizer)
    return compile_whole(*state)


def rewrite(optimizer: torch.optim.Adam) -> None:
    """Adam without what torch.compile keeps out of a graph: its state is in lists here, not in the optimizer."""
    (group,) = optimizer.param_groups
    parameters = group["params"]
    averages, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    counts = [torch.tensor(0.0) for _ in parameters]
    names = ("lr", "eps", "weight_decay", "decoupled_weight_decay", "amsgrad", "maximize")
    settings = {name: group[name] for name in names} | dict(zip(("beta1", "beta2"), group["betas"], strict=True))

    def zero_grad() -> None:
        for parameter in parameters:
            parameter.grad = None

    @torch.no_grad()
    def step() -> None:
        used = [i for i, parameter in enumerate(parameters) if parameter.grad is not None]
        lists = ([part[i] for i in used] for part in (averages, squares))
        gradients = [parameters[i].grad for i in used]
        adam(
            [parameters[i] for i in used], gradients, *lists, [], [counts[i] for i in used],
            foreach=True, capturable=True, **settings,
        )  # fmt: skip

    optimizer.zero_grad, optimizer.step = zero_grad, step


def in_new_process(function: Callable[..., Run], *args: object) -> Run:
    """What torch.compile keeps of one way, even after a reset, can make it refuse another."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def train(example: str, way: str, options: argparse.Namespace) -> Run:
    """From the first weights, on the first batches, so that every way has the same ones."""
    torch.set_num_threads(options.threads)
    torch._inductor.config.fallback_random = True
    build = importlib.import_module(example).build
    try:
        training = build(ways(options)[way])
        curve = tuple(losses(training, options.steps))
    except (fg.ForegradError, RuntimeError, AssertionError) as error:
        return Run(way, breaks=num_breaks(), refusal=reason_of(error))
    eager, this = milliseconds([build(plain), training], options.rounds)
    return Run(way, curve, this, eager / this, num_breaks())


def reason_of(error: Exception) -> str:
    """The first line that says something; torch.compile explains it in the next one."""
    first, *rest = [line.strip() for line in str(error).splitlines() if line.strip()]
    explained = [line.partition(": ")[2] for line in rest[:1] if line.startswith("Explanation: ")]
    return ": ".join([first, *explained])


def num_breaks() -> int:
    return sum(counters["graph_break"].values())


def milliseconds(trainings: list[Training], rounds: int) -> list[float]:
    """Medians of rounds in which each has its turn, so that a slow minute slows all of them; CPU time."""
    seconds: list[list[float]] = [[] for _ in trainings]
    batch = trainings[0].batch()
    for _ in range(rounds):
        for training, times in zip(trainings, seconds, strict=True):
            gc.collect()
            start = time.process_time()
            for _ in range(5):
                training.step(*batch)
            times.append((time.process_time() - start) / 5)
    return [1e3 * statistics.median(times) for times in seconds]


def describe(example: str, runs: list[Run]) -> list[list[str]]:
    eager = runs[0].losses
    rows = []
    for run in runs:
        row = [example if run is runs[0] else "", run.way]
        if run.refusal:
            after = f"{run.breaks}, then: " if run.breaks else ""
            rows.append([*row, "", "", "", "refused", "", after + run.refusal])
            continue
        off = max(abs(a - b) for a, b in zip(run.losses, eager, strict=True))
        first, last = (f"{loss:.4f}" for loss in (run.losses[0], run.losses[-1]))
        breaks = str(run.breaks) if run.way.startswith("torch.compile") else ""
        rows.append(
            [*row, first, last, f"{off:.0e}" if off else "0", f"{run.milliseconds:.2f}", f"{run.speed:.2f}", breaks]
        )
    return rows


def table(rows: list[list[str]]) -> Table:
    result = Table(title="The examples in one run", title_justify="left")
    for position, column in enumerate(COLUMNS):
        result.add_column(column, justify="left" if position in (0, 1, len(COLUMNS) - 1) else "right")
    for row in rows:
        result.add_row(*row)
    return result


def markdown(rows: list[list[str]], options: argparse.Namespace) -> str:
    said = (
        f"torch {torch.__version__}, {options.threads} thread(s), CPU time, {options.steps} steps of each loss curve."
    )
    lines = [COLUMNS, ["---"] * len(COLUMNS), *rows]
    return f"\n{said}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    main()
