"""Time of a training step (forward, loss, backward; no optimizer): eager, torch.compile and foregrad.

python benchmarks/step.py [--only gpt lstm] [--rounds 15] [--threads 1] [--backend inductor] [--peer none]

Both compilers are used in two ways: on the module, with `torch.autograd.grad` after it, and on the whole step, with
`torch.autograd.grad` inside. The faster way of each counts.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from rich.console import Console
from torch import Tensor, nn
from workloads import build

import foregrad as fg

FASTER, NOT_SLOWER = 0.77, 1.0  # 1.3 times faster, and at least as fast
TARGETS = {
    "mlp-small": FASTER,
    "mlp-large": NOT_SLOWER,
    "gpt": NOT_SLOWER,
    "resnet": NOT_SLOWER,
    "lstm": NOT_SLOWER,
    "blocks-100": FASTER,
}
OURS = ("foregrad, module", "foregrad, step")
PEER = ("torch.compile, module", "torch.compile, step")
SECONDS_A_ROUND = 0.1
AGREE = 1e-3

Step = Callable[[], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Measured:
    """Seconds of a step on each side, and how far each side's first results are from eager's."""

    name: str
    times: dict[str, Timing]
    differences: dict[str, float]

    def best(self, ways: tuple[str, ...]) -> str | None:
        """The faster of these ways."""
        return min((way for way in ways if way in self.times), key=lambda way: self.times[way].median, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS), metavar="NAME")
    parser.add_argument("--backend", default="inductor", help="foregrad's")
    parser.add_argument("--peer", choices=("torch.compile", "none"), default="torch.compile")
    options = parser.parse_args()
    console = start(options)
    print_results([measure(name, options, console) for name in options.only], options, console)


def measure(name: str, options: argparse.Namespace, console: Console) -> Measured:
    compilers = {"foregrad": partial(fg.compile, backend=options.backend)}
    if options.peer != "none":
        torch.compiler.reset()  # sizes of the last model must not make this one's dynamic
        torch._dynamo.config.trace_autograd_ops = True  # without it a backward inside a function is refused
        compilers["torch.compile"] = partial(torch.compile, fullgraph=True)
    ways = {"eager": lambda model, inputs: step_of(model, model, inputs)}
    for compiler, compile_ in compilers.items():
        ways[f"{compiler}, module"] = lambda model, inputs, c=compile_: step_of(c(model), model, inputs)
        ways[f"{compiler}, step"] = lambda model, inputs, c=compile_: c(step_of(model, model, inputs))
    steps: dict[str, Step] = {}
    differences: dict[str, float] = {}
    reference: list[Tensor] = []
    for way, make in ways.items():
        model, inputs = build(name)
        step = make(model, inputs)
        with console.status(f"{name}: first step of {way}"):
            try:
                loss, gradients = step()
            except (fg.ForegradError, torch._dynamo.exc.TorchDynamoException) as error:
                console.print(f"{name}: {way} cannot be compiled: {str(error).splitlines()[0]}")
                continue
        results = [loss, *gradients, *model.buffers()]
        reference = reference or [r.clone() for r in results]
        differences[way] = largest_difference(results, reference)
        steps[way] = step
        step()  # whatever a second call still has to prepare is not timed
    calls = calls_a_round(steps["eager"])
    times = interleave(steps, rounds=options.rounds, clock=options.clock, calls=calls, title=name)
    return Measured(name, times, differences)


def step_of(run: Callable[..., Tensor], model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    """A step of a model; `run` is the model itself, or what a compiler made of it."""
    parameters = tuple(model.parameters())

    def step() -> tuple[Tensor, tuple[Tensor, ...]]:
        loss = run(*inputs)
        gradients = torch.autograd.grad(loss, parameters)
        return loss.detach(), gradients

    return step


def largest_difference(results: list[Tensor], reference: list[Tensor]) -> float:
    """Over all tensors, the largest difference of an element, as a part of the tensor's largest element."""
    pairs = [(a.double(), b.double()) for a, b in zip(results, reference, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def calls_a_round(step: Step) -> int:
    """So many calls that a round of eager is long enough for the clock."""
    once = interleave({"eager": step}, rounds=3, clock="wall")["eager"].median
    return max(1, round(SECONDS_A_ROUND / once))


def print_results(results: list[Measured], options: argparse.Namespace, console: Console) -> None:
    ways = ("eager", *OURS, *PEER)
    heads = [way.replace(", ", "\n") for way in ways]
    title = f"Milliseconds a step; foregrad with backend={options.backend}"
    rows = table(title, "", *heads, "foregrad /\ntorch.compile", "off eager\nby")
    for r in results:
        ours, theirs = r.best(OURS), r.best(PEER)
        cells = [cell(r, way, is_best=way in (ours, theirs)) for way in ways]
        ratio = ""
        if ours and theirs:
            ratio = verdict(r.times[ours].median / r.times[theirs].median, at_most=TARGETS[r.name])
        rows.add_row(r.name, *cells, ratio, difference(max(r.differences.values())))
    console.print(rows)
    console.print(
        "bold: the faster way of each; off eager by: largest relative difference of a loss, gradient or buffer"
    )


def difference(value: float) -> str:
    return f"[{'green' if value < AGREE else 'red'}]{value:.0e}[/]"


def cell(measured: Measured, way: str, is_best: bool) -> str:
    if way not in measured.times:
        return ""
    text = measured.times[way].text(1e-3)
    return f"[bold]{text}[/]" if is_best else text


if __name__ == "__main__":
    main()
