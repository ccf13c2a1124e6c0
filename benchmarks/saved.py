"""Memory and time of a training step under each saved-tensor policy, beside torch's `save_on_cpu` and checkpoints.

python benchmarks/saved.py [--workload gpt] [--rounds 15] [--threads 1] [--clock cpu]

Everything is on the CPU, so that `save_on_cpu` has nothing to move: what is timed is what it costs to ask. Memory is
what the C library has given out, less what was there before: after the forward, and the most at any op of the step.
"""

import argparse
import ctypes
import gc
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from rich.console import Console
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from workloads import build

import foregrad as fg

TORCHS, OURS = "torch save_on_cpu", "save_on_cpu"
NOT_SLOWER = 1.03  # times of the same thing differ by so much from run to run


class Heap(ctypes.Structure):
    """What `mallinfo2` of the GNU C library returns; bytes in small pieces and in large ones."""

    _fields_ = [(name, ctypes.c_size_t) for name in ("a", "b", "c", "d", "large", "f", "g", "small", "i", "j")]


@dataclass(frozen=True)
class Figures:
    """Of one policy: bytes after the forward, most bytes in a step, and how far gradients are from those of eager."""

    kept: int
    most: int
    off: float


class Most(TorchDispatchMode):
    """The largest number of bytes in use at any op."""

    def __init__(self) -> None:
        super().__init__()
        self.num_bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.num_bytes = max(self.num_bytes, bytes_in_use())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=15)
    parser.add_argument("--workload", default="gpt", help="a model with .blocks: gpt, or blocks-N")
    options = parser.parse_args()
    console = start(options)
    with tempfile.TemporaryDirectory() as folder:
        policies: dict[str, Callable[[], Any]] = {
            "none": nullcontext,
            TORCHS: torch.autograd.graph.save_on_cpu,
            OURS: fg.graph.save_on_cpu,
            "torch save_on_cpu, pinned": partial(torch.autograd.graph.save_on_cpu, pin_memory=True),
            "save_on_cpu, pinned": partial(fg.graph.save_on_cpu, pin_memory=True),
            "save_on_disk": partial(fg.graph.save_on_disk, folder),
            "save_as bfloat16": partial(fg.graph.save_as, torch.bfloat16),
            "save_quantized 8 bits": partial(fg.graph.save_quantized, 8),
            "save_quantized 4 bits": partial(fg.graph.save_quantized, 4),
            "torch checkpoint, each block": nullcontext,
        }
        figures: dict[str, Figures] = {}
        steps: dict[str, Callable[[], Any]] = {}
        reference: list[Tensor] = []
        for name, policy in policies.items():
            model, inputs = build(options.workload)
            if "checkpoint" in name:
                checkpoint_blocks(model)
            steps[name] = partial(step, model, inputs, policy)
            gradients = [g.clone() for g in steps[name]()]
            reference = reference or gradients
            measure(model, inputs, policy)  # what is there for good after the first time is not counted
            figures[name] = Figures(*measure(model, inputs, policy), difference(gradients, reference))
        times = interleave(steps, rounds=options.rounds, clock=options.clock, title=options.workload)
    print_results(options.workload, figures, times, console)


def checkpoint_blocks(model: nn.Module) -> None:
    for block in model.blocks:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)


def step(model: nn.Module, inputs: tuple[Tensor, ...], policy: Callable[[], Any]) -> tuple[Tensor, ...]:
    with policy():
        loss = model(*inputs)
    return torch.autograd.grad(loss, tuple(model.parameters()))


def measure(model: nn.Module, inputs: tuple[Tensor, ...], policy: Callable[[], Any]) -> tuple[int, int]:
    """Bytes in use after the forward, and most bytes in use during the step, beyond what was there."""
    gc.collect()
    before = bytes_in_use()
    with Most() as most:
        with policy():
            loss = model(*inputs)
        gc.collect()
        kept = bytes_in_use()
        torch.autograd.grad(loss, tuple(model.parameters()))
    del loss
    return kept - before, most.num_bytes - before


def bytes_in_use() -> int:
    library = ctypes.CDLL(None)
    library.mallinfo2.restype = Heap
    heap = library.mallinfo2()
    return heap.small + heap.large


def difference(gradients: list[Tensor], reference: list[Tensor]) -> float:
    """The length of the difference of all gradients, as a part of their length."""
    pairs = list(zip(gradients, reference, strict=True))
    off = sum(float((a - b).double().square().sum()) for a, b in pairs)
    return (off / sum(float(b.double().square().sum()) for _, b in pairs)) ** 0.5


def print_results(workload: str, figures: dict[str, Figures], times: dict[str, Timing], console: Console) -> None:
    title = f"A step of {workload} under each policy"
    rows = table(title, "", "MB after\nthe forward", "MB at\nmost", "ms a step", "times\nnone", "gradients\noff by")
    for name, one in figures.items():
        ratio = times[name].median / times["none"].median
        cells = f"{one.kept / 1e6:.1f}", f"{one.most / 1e6:.1f}", times[name].text(1e-3, 1), f"{ratio:.2f}"
        rows.add_row(name, *cells, f"{one.off:.0e}")
    console.print(rows)
    ratio = times[OURS].median / times[TORCHS].median
    console.print(f"save_on_cpu / torch's save_on_cpu: {verdict(ratio, at_most=NOT_SLOWER)}")


if __name__ == "__main__":
    main()
