"""A physics-informed network: Burgers' equation, from nothing but the equation.

python examples/pinn.py [--steps 2000] [--backend inductor] [--plain]

A small network u(x, t) is trained until u_t + u u_x = ν u_xx holds at random points. The residual has first and second
derivatives of the network by its inputs, and the loss is differentiated once more by the weights. The exact solution is
only used to say how good the result is.
"""

import math

import torch
from numpy.polynomial.hermite import hermgauss
from runner import Decorator, Training, main
from torch import Tensor, nn

import foregrad as fg

VISCOSITY = 0.1
POINTS = 256


class Solution(nn.Module):
    """u(x, t) on [-1, 1] × [0, 1], with u(x, 0) = -sin πx and u(±1, t) = 0 by construction."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        correction = self.network(torch.stack([x, t], dim=1)).squeeze(1)
        return t * (1 - x.square()) * correction - torch.sin(math.pi * x)


def derivative(y: Tensor, x: Tensor) -> Tensor:
    """dy/dx at every point: each y depends on its own x only."""
    return torch.autograd.grad(y.sum(), x, create_graph=True)[0]


def build(step: Decorator = fg.step) -> Training:
    torch.manual_seed(0)
    model = Solution()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    @step(model, optimizer)
    def train(x: Tensor, t: Tensor) -> Tensor:
        optimizer.zero_grad()
        x, t = x.detach().requires_grad_(), t.detach().requires_grad_()
        u = model(x, t)
        u_x, u_t = derivative(u, x), derivative(u, t)
        residual = u_t + u * u_x - VISCOSITY * derivative(u_x, x)
        loss = residual.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def batch() -> tuple[Tensor, Tensor]:
        return 2 * torch.rand(POINTS) - 1, torch.rand(POINTS)

    def error() -> float:
        x, t = torch.linspace(-1, 1, 101), torch.full((101,), 0.5)
        with torch.no_grad():
            return (model(x, t) - exact(x, t)).abs().max().item()

    return Training(train, batch, error, "largest distance from the exact solution at t = 0.5")


def exact(x: Tensor, t: Tensor) -> Tensor:
    """The solution by the Cole-Hopf transform: a ratio of two integrals, by Gauss-Hermite quadrature."""
    nodes, weights = (torch.from_numpy(part).float() for part in hermgauss(100))
    y = x[:, None] - nodes * (4 * VISCOSITY * t).sqrt()[:, None]
    density = weights * torch.exp(-torch.cos(math.pi * y) / (2 * math.pi * VISCOSITY))
    return -(density * torch.sin(math.pi * y)).sum(1) / density.sum(1)


if __name__ == "__main__":
    main(build, steps=2000)
