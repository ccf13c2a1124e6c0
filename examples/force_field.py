"""A force field: the energy of a small message-passing network, trained on forces alone.

python examples/force_field.py [--steps 600] [--backend inductor] [--plain]

Forces are minus the gradient of the energy by the positions, so that they belong to an energy whatever the weights are.
The loss compares forces, and its own gradient goes through that gradient. The data are small clusters of atoms with a
potential of pairs (Morse) and one of triples.
"""

import itertools

import torch
from runner import Decorator, Training, main
from torch import Tensor, nn
from torch.nn import functional as F

import foregrad as fg

ATOMS, CLUSTERS = 6, 32
# every ordered pair of two atoms; with all atoms this close together, all of them are neighbours
PAIRS = list(itertools.permutations(range(ATOMS), 2))
RECEIVER, SENDER = torch.tensor([a for a, _ in PAIRS]), torch.tensor([b for _, b in PAIRS])


def distances(positions: Tensor) -> Tensor:
    """[cluster, pair] from [cluster, atom, 3]."""
    return (positions[:, RECEIVER] - positions[:, SENDER]).norm(dim=-1)


class Energy(nn.Module):
    """Atoms send each other messages that are filtered by their distance; the energy is a sum over atoms."""

    def __init__(self, width: int = 32, rounds: int = 2, waves: int = 16) -> None:
        super().__init__()
        self.register_buffer("centers", torch.linspace(0.5, 4.0, waves))
        self.start = nn.Parameter(torch.randn(width))
        self.filters = nn.ModuleList(nn.Linear(waves, width) for _ in range(rounds))
        self.updates = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(rounds))
        self.read = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, positions: Tensor) -> Tensor:
        """[cluster] from [cluster, atom, 3]."""
        waves = torch.exp(-4 * (distances(positions)[..., None] - self.centers).square())
        atoms = self.start.expand(*positions.shape[:2], -1)
        for filter_, update in zip(self.filters, self.updates, strict=True):
            messages = filter_(waves) * atoms[:, SENDER]
            atoms = atoms + update(torch.zeros_like(atoms).index_add(1, RECEIVER, messages))
        return self.read(atoms).sum((1, 2))


def forces(energy: Tensor, positions: Tensor, create_graph: bool = False) -> Tensor:
    return -torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)[0]


def build(step: Decorator = fg.step) -> Training:
    torch.manual_seed(0)
    model = Energy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    @step(model, optimizer)
    def train(positions: Tensor, target: Tensor) -> Tensor:
        optimizer.zero_grad()
        positions = positions.detach().requires_grad_()
        loss = F.mse_loss(forces(model(positions), positions, create_graph=True), target)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    held_out = clusters(256)

    def error() -> float:
        positions, target = held_out
        found = forces(model(positions), positions)
        return (F.mse_loss(found, target).sqrt() / target.std()).item()

    return Training(train, lambda: clusters(CLUSTERS), error, "error of new forces, as a part of their spread")


def clusters(count: int) -> tuple[Tensor, Tensor]:
    """Random positions, near the corners of an octahedron, and the forces that the true energy has there."""
    corners = 1.1 * torch.cat([torch.eye(3), -torch.eye(3)])
    positions = (corners + 0.2 * torch.randn(count, ATOMS, 3)).requires_grad_()
    return positions, forces(true_energy(positions), positions)


def true_energy(positions: Tensor) -> Tensor:
    """A Morse potential for each pair, and for each atom the square of how crowded it is."""
    pairs = distances(positions)
    morse = (1 - torch.exp(1.4 - pairs)).square()
    crowd = torch.exp(-pairs).unflatten(1, (ATOMS, ATOMS - 1)).sum(2)
    return 0.5 * morse.sum(1) + 3 * crowd.square().sum(1)


if __name__ == "__main__":
    main(build, steps=600)
