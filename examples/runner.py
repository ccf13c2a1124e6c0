"""What the examples share: options, progress, the loop around a step."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor

import foregrad as fg

Decorator = Callable[..., Callable[[Callable[..., Tensor]], Callable[..., Tensor]]]


@dataclass(frozen=True)
class Training:
    """A step that returns its loss, the batches that it is given, how far the model is from its aim, and of what."""

    step: Callable[..., Tensor]
    batch: Callable[[], tuple[Tensor, ...]]
    error: Callable[[], float]
    meaning: str


def plain(*state: Any) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """In place of `fg.step`: the function as it is, run by eager PyTorch."""
    return lambda function: function


def losses(training: Training, steps: int) -> list[float]:
    """The loss of each step."""
    return [training.step(*training.batch()).item() for _ in range(steps)]


def main(build: Callable[[Decorator], Training], steps: int) -> None:
    """Train from the command line; the example's docstring is the help."""
    options = arguments(build.__globals__["__doc__"], steps)
    torch.set_num_threads(options.threads)
    console = Console()
    training = build(plain if options.plain else partial(fg.step, backend=options.backend))
    console.print(f"before: {training.meaning} {training.error():.4f}")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.6f}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("", total=options.steps, loss=float("nan"))
        for number in range(1, options.steps + 1):
            loss = training.step(*training.batch())
            progress.update(bar, advance=1, loss=loss.item())
            if number in (1, options.steps) or number % max(1, options.steps // 10) == 0:
                console.print(f"step {number:5}  loss {loss.item():.6f}")
    console.print(f"after:  {training.meaning} {training.error():.4f}")


def arguments(description: str, steps: int) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--backend", choices=("inductor", "aoti", "eager"), help="foregrad's")
    parser.add_argument("--plain", action="store_true", help="eager PyTorch, without foregrad")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()
