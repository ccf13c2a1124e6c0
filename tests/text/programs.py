"""Small programs whose listings are golden. The listings name these lines: add new programs at the end."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def pointwise(x, w):
    y = torch.sin(x) * w
    return y.exp().sum()


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, x):
        y = self.fc(x)
        return self.norm(y).relu()


def writes_and_returns_a_view(x, w):
    x[0].mul_(w)
    y = x * 2
    return x[1], y.t()


def force(position):
    potential = position.square().exp().sum()
    (gradient,) = torch.autograd.grad(potential, position, create_graph=True)
    return -gradient


offset = torch.ones(3)


def closed_over(x):
    return x * offset + torch.tensor([1.0, 2.0, 3.0])


def checkpointed(x, w):
    def layer(x):
        return torch.tanh(x @ w)

    return checkpoint(layer, x, use_reentrant=False).sum()


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4)) for _ in range(6))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()
