"""python -m tests.keep.share.start KIND NAME: one start of a workload, an example or an architecture.

The last line that it prints is JSON: how each capture came about, what `fg.explain` says, and the loss.
"""

from __future__ import annotations

import importlib
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

import foregrad as fg

TOP = Path(__file__).parents[3]


def workload(name: str) -> tuple[Any, torch.Tensor]:
    """One training step of what the benchmarks train."""
    sys.path.insert(0, str(TOP / "benchmarks"))
    model, inputs = importlib.import_module("workloads").build(name)
    optimizer = torch.optim.AdamW(model.parameters())

    @fg.step(model, optimizer)
    def train(*inputs: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, train(*inputs)


def example(name: str) -> tuple[Any, torch.Tensor]:
    """One step of an example."""
    sys.path.insert(0, str(TOP / "examples"))
    training = importlib.import_module(name).build(partial(fg.step))
    return training.step, training.step(*training.batch())


def architecture(name: str) -> tuple[Any, torch.Tensor]:
    """Loss and gradients of a small model of `transformers`."""
    from tests.conformance.architectures import ARCHITECTURES, build

    torch.manual_seed(0)
    chosen = ARCHITECTURES[name]
    model = fg.compile(build(chosen, dropout=0.0))
    loss = model(**chosen.inputs()).loss
    loss.backward()
    return model, loss.detach()


def main(kind: str, name: str) -> None:
    function, loss = {"workload": workload, "example": example, "architecture": architecture}[kind](name)
    how = [one.origin.how for one in function.captures]
    print(json.dumps({"how": how, "explained": str(fg.explain(function)), "loss": loss.item()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
