"""Each way to run a whole training step with AdamW: eager, those of torch.compile, foregrad's. All train in place."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.adamw import adamw

import foregrad as fg

RATE, BETAS, EPSILON, DECAY = 1e-3, (0.9, 0.999), 1e-8, 1e-2
OPTAX = {"learning_rate": RATE, "b1": BETAS[0], "b2": BETAS[1], "eps": EPSILON, "weight_decay": DECAY}

Step = Callable[[], Tensor]
Way = Callable[[nn.Module, tuple[Tensor, ...]], Step]

EAGER = "eager, fused AdamW"
COMPILED_MODEL = "torch.compile: model; fused AdamW"


def optimizer_of(model: nn.Module, fused: bool) -> AdamW:
    return AdamW(model.parameters(), lr=RATE, betas=BETAS, eps=EPSILON, weight_decay=DECAY, fused=fused)


def step_of(run: Callable[..., Tensor], optimizer: AdamW, inputs: tuple[Tensor, ...]) -> Step:
    """The step as everyone writes it; `run` is the model, or what a compiler made of it."""

    def step() -> Tensor:
        optimizer.zero_grad()
        loss = run(*inputs)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def eager(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    return step_of(model, optimizer_of(model, fused=True), inputs)


def compiled_model(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    return step_of(torch.compile(model, fullgraph=True), optimizer_of(model, fused=True), inputs)


def compiled_model_and_optimizer(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    optimizer = optimizer_of(model, fused=False)
    optimizer.step = torch.compile(optimizer.step)
    return step_of(torch.compile(model, fullgraph=True), optimizer, inputs)


def compiled_step(model: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    """One graph. Written for torch.compile, which takes neither `zero_grad` nor `optimizer.step` into a whole graph:
    gradients by `torch.autograd.grad`, the optimizer by its function, and its state kept by hand."""
    parameters = list(model.parameters())
    averages, squares = ([torch.zeros_like(p) for p in parameters] for _ in range(2))
    counts = [torch.tensor(0.0) for _ in parameters]

    def step() -> Tensor:
        loss = model(*inputs)
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            adamw(
                parameters, list(gradients), averages, squares, [], counts, foreach=True, capturable=True,
                amsgrad=False, maximize=False, lr=RATE, beta1=BETAS[0], beta2=BETAS[1], eps=EPSILON, weight_decay=DECAY,
            )  # fmt: skip
        return loss.detach()

    return torch.compile(step, fullgraph=True)


def captured(model: nn.Module, inputs: tuple[Tensor, ...], *, backend: str, fused: bool) -> Step:
    optimizer = optimizer_of(model, fused)
    return fg.step(model, optimizer, backend=backend)(step_of(model, optimizer, inputs))


TORCH: dict[str, Way] = {
    EAGER: eager,
    COMPILED_MODEL: compiled_model,
    "torch.compile: model and optimizer": compiled_model_and_optimizer,
    "torch.compile: whole step": compiled_step,
}
OURS = "foregrad: "
FUSED = ", fused AdamW"


def ours(backends: list[str]) -> list[str]:
    """Names of foregrad's ways."""
    return [OURS + backend + fused for backend in backends for fused in ("", FUSED)]


def way_of(name: str) -> Way:
    if not name.startswith(OURS):
        return TORCH[name]
    return partial(captured, backend=name.removeprefix(OURS).removesuffix(FUSED), fused=name.endswith(FUSED))
