"""MAML: weights from which two steps of gradient descent fit a new task, learned through those two steps.

python examples/maml.py [--steps 2000] [--backend inductor] [--plain]

A task is a sine of random amplitude and phase, seen at ten points. The loss is the error at ten other points after two
inner steps, so its gradient by the weights contains second derivatives, through both steps.
"""

import torch
from runner import Decorator, Training, main
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

import foregrad as fg

TASKS, POINTS = 4, 10
INNER_STEPS, INNER_RATE = 2, 0.05

Weights = dict[str, Tensor]


def adapt(model: nn.Module, weights: Weights, x: Tensor, y: Tensor) -> Weights:
    """The weights after the inner steps on one task, differentiable by those before."""
    for _ in range(INNER_STEPS):
        loss = F.mse_loss(functional_call(model, weights, x), y)
        gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
        weights = {
            name: weight - INNER_RATE * gradient
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
    return weights


def error_after(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The error on the second half of each task's points after adapting to the first half, mean over tasks."""
    weights = dict(model.named_parameters())
    errors = []
    for (x_seen, x_new), (y_seen, y_new) in zip(x.unflatten(1, (2, POINTS)), y.unflatten(1, (2, POINTS)), strict=True):
        adapted = adapt(model, weights, x_seen, y_seen)
        errors.append(F.mse_loss(functional_call(model, adapted, x_new), y_new))
    return torch.stack(errors).mean()


def build(step: Decorator = fg.step) -> Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    @step(model, optimizer)
    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = error_after(model, x, y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    held_out = tasks(200)

    def error() -> float:
        return error_after(model, *held_out).item()

    return Training(train, lambda: tasks(TASKS), error, "error on new tasks after the inner steps")


def tasks(count: int) -> tuple[Tensor, Tensor]:
    """x and y, [task, point, 1], of sines with amplitudes from 0.5 to 3 and any phase."""
    amplitude = 0.5 + 2.5 * torch.rand(count, 1, 1)
    phase = torch.pi * torch.rand(count, 1, 1)
    x = 10 * torch.rand(count, 2 * POINTS, 1) - 5
    return x, amplitude * torch.sin(x + phase)


if __name__ == "__main__":
    main(build, steps=2000)
