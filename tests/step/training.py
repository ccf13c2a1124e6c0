"""A small training run, eager or as a step, whose whole outcome can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import foregrad as fg

Make = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


@dataclass
class Run:
    """What a run leaves behind; `step` is None if it was eager."""

    losses: list[torch.Tensor]
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Any = None

    def outcome(self) -> dict[str, Any]:
        """Losses, parameters, gradients, and the optimizer's state."""
        values: dict[str, Any] = {f"loss {i}": loss for i, loss in enumerate(self.losses)}
        for name, parameter in self.model.named_parameters():
            values[name], values[f"{name}.grad"] = parameter.detach(), parameter.grad
        for name, buffer in self.model.named_buffers():
            values[name] = buffer
        saved = self.optimizer.state_dict()
        for number, state in saved["state"].items():
            values |= {f"state {number} {key}": value for key, value in state.items()}
        for number, group in enumerate(saved["param_groups"]):
            values |= {f"group {number} {key}": value for key, value in group.items()}
        return values


def assert_same(eager: Run, ours: Run, tolerance: float = 0.0) -> None:
    """Bitwise, unless there is a tolerance for the tensors."""
    expected, found = eager.outcome(), ours.outcome()
    assert list(found) == list(expected)
    different = [name for name in expected if not _equal(expected[name], found[name], tolerance)]
    assert not different, different


def _equal(a: Any, b: Any, tolerance: float) -> bool:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and a == b
    is_alike = (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    return is_alike and (torch.equal(a, b) if not tolerance else torch.allclose(a, b, tolerance, tolerance))


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups: matrices, and all others without weight decay."""
    matrices = [p for p in model.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if p.dim() != 2]
    return [{"params": matrices}, {"params": others, "lr": 0.02}]


def train(
    make: Make,
    schedule: Callable[..., Any] | None = None,
    *,
    num_steps: int = 20,
    backend: Any = None,
    reload_at: int | None = None,
    clip: bool = True,
) -> Run:
    """Two micro-batches, clipping and an optimizer step at each call; a step if there is a backend, else eager."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2))
    optimizer = make(groups(model))
    scheduler = schedule(optimizer) if schedule is not None else None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        total = torch.zeros(())
        for some_x, some_y in zip(x.chunk(2), y.chunk(2), strict=True):
            loss = (model(some_x) - some_y).square().mean() / 2
            loss.backward()
            total = total + loss.detach()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        return total

    run = fg.step(model, optimizer, backend=backend)(step) if backend is not None else step
    generator = torch.Generator().manual_seed(1)
    losses = []
    for number in range(num_steps):
        if number == reload_at:
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            model.load_state_dict(saved[0])
            optimizer.load_state_dict(saved[1])
        x, y = torch.randn(6, 3, generator=generator), torch.randn(6, 2, generator=generator)
        losses.append(run(x, y))
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            scheduler.step(losses[-1])
        elif scheduler is not None:
            scheduler.step()
    return Run(losses, model, optimizer, run if backend is not None else None)
