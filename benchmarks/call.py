"""The cost of a call: three ops on 16 elements, where the work is nothing and the way there is all.

python benchmarks/call.py [--rounds 15] [--clock cpu|wall] [--no-compile] [--many 330]
"""

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from rich.console import Console
from torch import Tensor

import foregrad as fg

CALLS = 500
WARM_UP = 200


def fn(x: Tensor, w: Tensor) -> Tensor:
    return torch.sin(x * w) + w


class HandWritten(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        product = x * w
        ctx.save_for_backward(x, w, product)
        return torch.sin(product) + w

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor, Tensor]:
        x, w, product = ctx.saved_tensors
        inner = tangent * product.cos()
        return inner * w, tangent + inner * x


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    parser.add_argument("--many", type=int, default=330, help="so many captures of one function, for the last table")
    options = parser.parse_args()
    console = start(options)
    targets = {"eager": fn, "hand-written": HandWritten.apply, "foregrad": fg.compile(fn, backend="eager")}
    if not options.no_compile:
        targets["torch.compile"] = torch.compile(fn)
    measured = {title: measure(kind, targets, options) for title, kind in KINDS.items()}
    print_results(measured, targets, console)
    measure_many(options, console)


def forward(target: Callable[..., Tensor]) -> Callable[[], object]:
    x, w, _ = tensors()
    return lambda: target(x, w)


def forward_and_backward(target: Callable[..., Tensor]) -> Callable[[], object]:
    x, w, tangent = tensors()
    return lambda: torch.autograd.grad(target(x, w), (x, w), tangent)


def forward_without_grad(target: Callable[..., Tensor]) -> Callable[[], object]:
    x, w, _ = tensors()

    def call() -> None:
        with torch.no_grad():
            target(x, w)

    return call


KINDS = {
    "forward": forward,
    "forward + backward": forward_and_backward,
    "forward, no grad": forward_without_grad,
}


def tensors() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(16, requires_grad=True), torch.randn(16, requires_grad=True), torch.randn(16)


def measure(
    kind: Callable[[Callable[..., Tensor]], Callable[[], object]],
    targets: dict[str, Callable[..., Tensor]],
    options: argparse.Namespace,
) -> dict[str, Timing]:
    candidates = {name: kind(target) for name, target in targets.items()}
    for call in candidates.values():
        for _ in range(WARM_UP):
            call()
    return interleave(candidates, rounds=options.rounds, clock=options.clock, calls=CALLS, title=kind.__name__)


def print_results(measured: dict[str, dict[str, Timing]], targets: dict[str, Any], console: Console) -> None:
    rows = table("Microseconds a call", "", *measured)
    for name in targets:
        rows.add_row(name, *(timings[name].text(1e-6, 1) for timings in measured.values()))
    console.print(rows)
    both, free = measured["forward + backward"], measured["forward, no grad"]

    def ratio(timings: dict[str, Timing], other: str) -> float:
        return timings["foregrad"].median / timings[other].median

    console.print("forward + backward / hand-written:", verdict(ratio(both, "hand-written"), at_most=1.3))
    if "torch.compile" in targets:
        console.print("forward + backward / torch.compile:", verdict(ratio(both, "torch.compile"), at_most=0.5))
    console.print("forward, no grad / eager:", verdict(ratio(free, "eager"), at_most=2.0))


def measure_many(options: argparse.Namespace, console: Console) -> None:
    """One call of a function with many captures, by when it was captured, beside a function with one."""
    one, many = (fg.compile(fn, backend="eager", dynamic=False, cache=False) for _ in range(2))
    shapes = [(16 + place,) for place in range(options.many)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was captured often
        for shape in shapes:
            many(torch.ones(shape), torch.ones(shape))
    candidates = {
        "the only capture": _call_of(one, shapes[0]),
        f"the first of {options.many}": _call_of(many, shapes[0]),
        f"the last of {options.many}": _call_of(many, shapes[-1]),
    }
    for call in candidates.values():
        call()
    timings = interleave(candidates, rounds=options.rounds, clock=options.clock, calls=CALLS, title="many captures")
    rows = table("Microseconds a call, with many captures", "", "forward")
    for name, timing in timings.items():
        rows.add_row(name, timing.text(1e-6, 1))
    console.print(rows)
    first, last = (timings[name].median for name in list(timings)[1:])
    console.print("first / last of many captures:", verdict(first / last, at_most=1.2))


def _call_of(target: Callable[..., Tensor], shape: tuple[int, ...]) -> Callable[[], object]:
    x, w = torch.ones(shape), torch.ones(shape)
    return lambda: target(x, w)


if __name__ == "__main__":
    main()
