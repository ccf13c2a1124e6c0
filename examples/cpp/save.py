"""Write step.fg, which train.cpp trains with: a small network and SGD with momentum, as one shared library.

python examples/cpp/save.py step.fg
"""

import sys

import torch
from torch import Tensor, nn

import foregrad as fg


def build():
    """A training step; its state begins when it is first called, so it is saved after the second call."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    @fg.step(model, optimizer, backend="aoti")
    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def data() -> tuple[Tensor, Tensor]:
    """What train.cpp makes too."""
    torch.manual_seed(0)
    x = torch.randn(16, 8)
    return x, x.sum(1, keepdim=True)


if __name__ == "__main__":
    step = build()
    for _ in range(2):
        step(*data())
    step.save(sys.argv[1])
