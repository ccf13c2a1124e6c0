"""Training with sizes that vary: a text of another length at each step, a smaller last batch, images of several sizes.

python benchmarks/sizes.py [--only gpt-lengths ...] [--lengths 40] [--rounds 5] [--clock cpu|wall] [--peer none]

One process, interleaved. For each side: how often it compiled and the wall seconds until it has seen all sizes once,
then the time of a step by size, beside foregrad's program for that size alone (`dynamic=False`), which is compiled for
the sizes that are timed. Compiled code of earlier runs is found by nobody: each run works in a folder of its own.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from models import GPT, ResNet
from rich.console import Console
from torch import Tensor, nn
from workloads import build

import foregrad as fg

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Sizes:
    """A model whose `forward` is the loss, and inputs for each size, in the order in which they come."""

    model: Callable[[], nn.Module]
    inputs: dict[str, Inputs]


def gpt_lengths(count: int) -> Sizes:
    lengths = torch.linspace(16, 256, count).round().int().tolist()
    order = [lengths[i] for i in torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()]
    tokens = {str(length): tuple(torch.randint(2048, (2, 4, length))) for length in order}
    return Sizes(lambda: GPT(layers=4, width=128, heads=4, vocabulary=2048, length=256), tokens)


def images(count: int) -> Sizes:
    sides = [32, 40, 24, 48, 28, 36][:count]
    return Sizes(lambda: ResNet(width=32), {str(s): (torch.randn(8, 3, s, s), torch.randint(10, (8,))) for s in sides})


def last_batch(name: str, dim: int) -> Callable[[int], Sizes]:
    """A workload with full batches, and one that is a third shorter."""

    def made(count: int) -> Sizes:
        _, full = build(name)
        last = tuple(one.narrow(dim, 0, one.shape[dim] * 2 // 3).contiguous() for one in full)
        return Sizes(lambda: build(name)[0], {"full": full, "last": last})

    return made


WORKLOADS: dict[str, Callable[[int], Sizes]] = {
    "gpt-lengths": gpt_lengths,
    "images": lambda count: images(6),
    "mlp-small": last_batch("mlp-small", 0),
    "mlp-large": last_batch("mlp-large", 0),
    "gpt": last_batch("gpt", 0),
    "resnet": last_batch("resnet", 0),
    "lstm": last_batch("lstm", 1),
    "blocks-100": last_batch("blocks-100", 0),
}


@dataclass(frozen=True)
class Side:
    """A model that one side trains, and how often it has compiled it."""

    model: Any
    num_programs: Callable[[], int]

    def step(self, inputs: Inputs) -> float:
        self.model.zero_grad()
        loss = self.model(*inputs)
        loss.backward()
        return float(loss.detach())


def foregrad_side(model: nn.Module, backend: str, dynamic: bool | None) -> Side:
    compiled = fg.compile(model, backend=backend, dynamic=dynamic, cache=False, progress=False)
    return Side(compiled, lambda: len(compiled.captures))


def torch_side(model: nn.Module, dynamic: bool | None) -> Side:
    import torch._dynamo
    from torch._dynamo.utils import counters

    before = counters["stats"]["unique_graphs"]
    return Side(torch.compile(model, dynamic=dynamic), lambda: counters["stats"]["unique_graphs"] - before)


def sides(model: Callable[[], nn.Module], options: argparse.Namespace) -> dict[str, Callable[[], Side]]:
    found: dict[str, Callable[[], Side]] = {
        "eager": lambda: Side(model(), lambda: 0),
        "foregrad": lambda: foregrad_side(model(), options.backend, None),
    }
    if options.peer == "torch":
        found |= {
            "torch.compile": lambda: torch_side(model(), None),
            "torch.compile dynamic": lambda: torch_side(model(), True),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=5)
    parser.add_argument("--only", nargs="+", choices=tuple(WORKLOADS), default=tuple(WORKLOADS))
    parser.add_argument("--lengths", type=int, default=40, help="lengths of texts")
    parser.add_argument(
        "--timed", type=int, default=3, help="sizes of which a step is timed: the least, the largest ..."
    )
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--peer", choices=("torch", "none"), default="torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foregrad-sizes-") as folder:
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # where foregrad and Inductor build
        console = start(options)
        if options.peer == "torch":  # to import it later would change what captures have read
            torch.compile(torch.sin)(torch.ones(2))
            torch._dynamo.config.recompile_limit = 64  # else torch.compile gives up, and runs as eager
        for name in options.only:
            measure(name, WORKLOADS[name](options.lengths), options, console)


def measure(name: str, sizes: Sizes, options: argparse.Namespace, console: Console) -> None:
    made: dict[str, Side] = {}
    seconds: dict[str, float] = {}
    losses: dict[str, list[float]] = {}
    for title, build_side in sides(with_seed(sizes.model), options).items():
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{tempfile.mkdtemp()}/inductor"  # no side finds what another has left
        begin = time.perf_counter()
        made[title] = build_side()
        losses[title] = [made[title].step(inputs) for inputs in sizes.inputs.values()]
        seconds[title] = time.perf_counter() - begin
    rows = table(f"{name}: {len(sizes.inputs)} sizes, each once", "", "compiled", "seconds", "loss, from eager's")
    for title, side in made.items():
        off = max(abs(one - other) for one, other in zip(losses[title], losses["eager"], strict=True))
        rows.add_row(title, str(side.num_programs()), f"{seconds[title]:.1f}", f"{off:.0e}")
    console.print(rows)
    if "torch.compile" in seconds:
        console.print(
            "first epoch, of torch.compile's:", verdict(seconds["foregrad"] / seconds["torch.compile"], at_most=0.5)
        )
    measure_steps(name, sizes, made, options, console)


def measure_steps(
    name: str, sizes: Sizes, made: dict[str, Side], options: argparse.Namespace, console: Console
) -> None:
    made = {**made, "foregrad, fixed": foregrad_side(with_seed(sizes.model)(), options.backend, False)}
    rows = table(
        f"{name}: milliseconds of forward and backward", "size", *made, "foregrad / fixed", "/ torch's dynamic"
    )
    for size in spread(list(sizes.inputs), options.timed):
        timings = timed(made, sizes.inputs[size], options)
        ours = timings["foregrad"].median
        peer = timings.get("torch.compile dynamic")
        rows.add_row(
            size,
            *(timing.text(1e-3) for timing in timings.values()),
            verdict(ours / timings["foregrad, fixed"].median, at_most=1.1),
            "" if peer is None else verdict(ours / peer.median, at_most=1.0),
        )
    console.print(rows)


def timed(made: dict[str, Side], inputs: Inputs, options: argparse.Namespace) -> dict[str, Timing]:
    def step_of(side: Side) -> Callable[[], float]:
        return lambda: side.step(inputs)

    steps = {title: step_of(side) for title, side in made.items()}
    begin = time.perf_counter()
    for _ in range(2):
        for step in steps.values():
            step()
    quickest = (time.perf_counter() - begin) / len(steps) / 2
    return interleave(steps, rounds=options.rounds, clock=options.clock, calls=max(1, min(50, int(0.2 / quickest))))


def spread(names: Sequence[str], count: int) -> list[str]:
    """Some of the sizes, from the least to the largest; the first one of all has a program of its own."""
    ordered = sorted(names[1:], key=int) if all(name.isdigit() for name in names) else list(names)
    places = [round(i * (len(ordered) - 1) / max(1, count - 1)) for i in range(count)]
    return [ordered[place] for place in dict.fromkeys(places)]


def with_seed(model: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return model()

    return made


if __name__ == "__main__":
    main()
