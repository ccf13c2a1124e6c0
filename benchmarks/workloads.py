"""What the benchmarks train: a model whose `forward` is the loss, and its inputs, the same ones each time."""

from collections.abc import Callable

import torch
from models import GPT, MLP, ResidualStack, ResNet, UnrolledLSTM
from torch import Tensor, nn

Workload = tuple[nn.Module, tuple[Tensor, ...]]


def mlp(widths: tuple[int, ...], batch: int) -> Workload:
    return MLP(widths), (torch.randn(batch, widths[0]), torch.randint(widths[-1], (batch,)))


def gpt() -> Workload:
    return GPT(), tuple(torch.randint(8192, (2, 4, 128)))


def resnet() -> Workload:
    return ResNet(), (torch.randn(32, 3, 32, 32), torch.randint(10, (32,)))


def lstm() -> Workload:
    return UnrolledLSTM(256), (torch.randn(50, 16, 256),)


def blocks(depth: int) -> Workload:
    return ResidualStack(depth), (torch.randn(32, 128),)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp-tiny": lambda: mlp((24, 40, 3), 16),
    "mlp-wide": lambda: mlp((24, 4096, 3), 64),
    "mlp-small": lambda: mlp((64, 128, 128, 10), 32),
    "mlp-large": lambda: mlp((784, 1024, 1024, 10), 256),
    "gpt": gpt,
    "resnet": resnet,
    "lstm": lstm,
}


def build(name: str) -> Workload:
    """A fresh model with the weights and the inputs that its name always has; `blocks-100` is 100 residual blocks."""
    torch.manual_seed(0)
    family, _, depth = name.partition("-")
    return blocks(int(depth)) if family == "blocks" else WORKLOADS[name]()
