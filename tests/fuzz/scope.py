"""The live variables of a program under construction, and random choices among them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import torch


class Scope:
    """Live variables of the program under construction, and the choices made from them."""

    def __init__(
        self, rng: random.Random, values: dict[str, Any], names: list[str], others: Sequence[dict[str, Any]] = ()
    ):
        self.rng, self.values, self.names = rng, values, names
        self.everywhere = (values, *others)  # the same variables for other data

    def new(self) -> str:
        return f"v{sum(name.startswith('v') for name in self.names)}"

    def tensor(self, suits: Callable[[torch.Tensor], bool] = lambda t: True) -> str:
        """A variable that suits, later ones more often."""
        found = [name for name in self.names if suits(self.values[name])]
        return max(self.rng.choice(found), self.rng.choice(found), key=found.index)

    def floating(self, dims: int = 0) -> str:
        return self.tensor(lambda t: t.is_floating_point() and t.dim() >= dims)

    def like(self, name: str) -> str:
        """A floating variable, or a number, that broadcasts to the size of `name`."""
        size = self.values[name].shape
        if self.rng.random() < 0.2:
            return self.rng.choice(("2.0", "0.5", "-1.5"))
        return self.tensor(lambda t: t.is_floating_point() and broadcasts(t.shape, size))

    def dim(self, name: str) -> int:
        return self.rng.choice(range(self.values[name].dim()))

    def size(self, name: str) -> torch.Size:
        return self.values[name].shape

    def pick(self, *items: Any) -> Any:
        return self.rng.choice(items)


def broadcasts(size: torch.Size, to: torch.Size) -> bool:
    return len(size) <= len(to) and all(s in (1, t) for s, t in zip(reversed(size), reversed(to), strict=False))
