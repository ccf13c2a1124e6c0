"""Time of a training step (forward, loss, backward; no optimizer): eager, torch.compile and foregrad.

python benchmarks/step.py [--only gpt lstm] [--rounds 15] [--threads 1] [--backend inductor] [--peer none]

torch.compile runs in two ways, and the faster one counts: `module`, the compiled module and then its backward, and
`whole step`, forward and `torch.autograd.grad` in one compiled function. foregrad runs in one, the compiled module.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from rich.console import Console
from torch import Tensor, nn
from torch._dynamo import config as dynamo
from torch._dynamo.exc import TorchDynamoException
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
PEERS = ("module", "whole step")
SECONDS_A_ROUND = 0.1

Step = Callable[[], tuple[Tensor, tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Measured:
    """Seconds of a step on each side, and how far each side's first results are from eager's."""

    name: str
    times: dict[str, Timing]
    differences: dict[str, float]

    @property
    def peer(self) -> str | None:
        """The faster way to use torch.compile."""
        return min((p for p in PEERS if p in self.times), key=lambda p: self.times[p].median, default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--only", nargs="+", choices=tuple(TARGETS), default=tuple(TARGETS), metavar="NAME")
    parser.add_argument("--backend", default="inductor", help="foregrad's")
    parser.add_argument("--peer", choices=("torch.compile", "none"), default="torch.compile")
    options = parser.parse_args()
    console = start(options)
    dynamo.trace_autograd_ops = True  # without it torch.compile refuses a backward inside a function
    print_results([measure(name, options, console) for name in options.only], options, console)


def measure(name: str, options: argparse.Namespace, console: Console) -> Measured:
    torch.compiler.reset()  # sizes of the last model must not make this one's dynamic
    ways = {"eager": eager, "foregrad": partial(foregrad, backend=options.backend)}
    if options.peer != "none":
        ways |= {"module": compiled_module, "whole step": compiled_step}
    steps: dict[str, Step] = {}
    differences: dict[str, float] = {}
    reference: list[Tensor] = []
    for way, make in ways.items():
        model, inputs = build(name)
        step = make(model, inputs)
        with console.status(f"{name}: first step of {way}"):
            try:
                loss, gradients = step()
            except TorchDynamoException as error:
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


def eager(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    return step_of(model, model, inputs)


def foregrad(model: nn.Module, inputs: tuple[Tensor, ...], backend: str) -> Step:
    return step_of(fg.compile(model, backend=backend), model, inputs)


def compiled_module(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    return step_of(torch.compile(model), model, inputs)


def compiled_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    return torch.compile(step_of(model, model, inputs), fullgraph=True)


def step_of(run: Callable[..., Tensor], model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    parameters = tuple(model.parameters())

    def step() -> tuple[Tensor, tuple[Tensor, ...]]:
        loss = run(*inputs)
        gradients = torch.autograd.grad(loss, parameters)
        return loss.detach(), gradients

    return step


def largest_difference(results: list[Tensor], reference: list[Tensor]) -> float:
    """Over all tensors: the largest difference of an element, as a part of the tensor's largest element."""
    pairs = [(a.double(), b.double()) for a, b in zip(results, reference, strict=True)]
    return max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-30)) for a, b in pairs)


def calls_a_round(step: Step) -> int:
    """So many calls that a round of eager is long enough for the clock."""
    once = interleave({"eager": step}, rounds=3, clock="wall")["eager"].median
    return max(1, round(SECONDS_A_ROUND / once))


def print_results(results: list[Measured], options: argparse.Namespace, console: Console) -> None:
    heads = ("eager", "torch.compile", "best way", "foregrad", "/ eager", "/ torch.compile", "off eager by\nfg, compile")
    rows = table(f"Milliseconds a step; foregrad with backend={options.backend}", "", *heads)
    for r in results:
        ours, theirs = r.times["foregrad"], r.times.get(r.peer or "")
        rows.add_row(
            r.name,
            r.times["eager"].text(1e-3),
            theirs.text(1e-3) if theirs else "",
            r.peer or "",
            ours.text(1e-3),
            f"{ours.median / r.times['eager'].median:.2f}",
            verdict(ours.median / theirs.median, at_most=TARGETS[r.name]) if theirs else "",
            ", ".join(f"{r.differences[way]:.0e}" for way in ("foregrad", r.peer) if way),
        )
    console.print(rows)


if __name__ == "__main__":
    main()
