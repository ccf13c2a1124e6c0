"""A Wasserstein GAN whose critic is held to slope one by a gradient penalty (WGAN-GP).

python examples/gradient_penalty.py [--steps 1500] [--backend inductor] [--plain]

A generator learns to put points on a circle. One step updates the critic and then the generator, two networks and two
optimizers in one function. The penalty is on the gradient of the critic by its input, at points drawn inside the step,
so training the critic differentiates that gradient. The loss that is shown is the critic's estimate of the distance
between real and generated points: it rises until the critic tells them apart, then the generator brings it down.
"""

import math

import torch
from runner import Decorator, Training, main
from torch import Tensor, nn

import foregrad as fg

BATCH, NOISE, PENALTY, SPREAD = 256, 4, 1.0, 0.05


def network(inputs: int, outputs: int, width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, outputs)
    )


def penalty(critic: nn.Module, real: Tensor, fake: Tensor) -> Tensor:
    """How far the critic's slope is from one, at random points between real and generated ones."""
    points = torch.lerp(real, fake, torch.rand(len(real), 1)).detach().requires_grad_()
    slope = torch.autograd.grad(critic(points).sum(), points, create_graph=True)[0]
    return (slope.norm(dim=1) - 1).square().mean()


def build(step: Decorator = fg.step) -> Training:
    torch.manual_seed(0)
    critic, generator = network(2, 1), network(NOISE, 2)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.9))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.9))

    @step(critic, generator, critic_optimizer, generator_optimizer)
    def train(real: Tensor) -> Tensor:
        fake = generator(torch.randn(len(real), NOISE))

        critic_optimizer.zero_grad()
        distance = critic(real).mean() - critic(fake.detach()).mean()
        (PENALTY * penalty(critic, real, fake) - distance).backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        (-critic(fake).mean()).backward()
        generator_optimizer.step()
        return distance.detach()

    def error() -> float:
        with torch.no_grad():
            made = generator(torch.randn(1000, NOISE))
        return torch.cdist(circle(1000), made).min(dim=1).values.mean().item()

    return Training(train, lambda: (circle(BATCH),), error, "distance of a real point to the next generated one")


def circle(count: int) -> Tensor:
    """Points near the unit circle."""
    angle = 2 * math.pi * torch.rand(count, 1)
    return torch.cat([angle.cos(), angle.sin()], dim=1) + SPREAD * torch.randn(count, 2)


if __name__ == "__main__":
    main(build, steps=1500)
