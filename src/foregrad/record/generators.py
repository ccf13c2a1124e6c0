"""Generators: those that a recording may draw from, each with its name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from foregrad.core.errors import CaptureError
from foregrad.torch_private.tensors import storage_key


@dataclass
class _Known:
    """A generator of the user's, and whether the function draws from it."""

    name: str
    generator: torch.Generator
    is_drawn: bool = False


class Generators:
    """Generators of the user's by their identity in C++: Python's objects for one generator may differ."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}

    def add(self, name: str, generator: torch.Generator) -> None:
        if identity(generator) != identity(torch.default_generator):
            self._known.setdefault(identity(generator), _Known(name, generator))

    @property
    def all(self) -> tuple[tuple[str, torch.Generator], ...]:
        return tuple((known.name, known.generator) for known in self._known.values())

    @property
    def drawn(self) -> dict[torch.Generator, str]:
        """Generators that were drawn from, and their names."""
        return {known.generator: known.name for known in self._known.values() if known.is_drawn}

    def of(self, given: torch.Generator, where: Callable[[], str]) -> torch.Generator | None:
        """The user's object for a generator; None for the default one."""
        if identity(given) == identity(torch.default_generator):
            return None
        known = self._known.get(identity(given))
        if known is None:
            raise CaptureError(
                "the function draws from a generator that it makes itself, or that is kept where calls do not look "
                f"for it.\n{where()}\nPass it as an argument, or keep it in a variable of the function or as an "
                "attribute of the module."
            )
        return known.generator

    def note(self, generator: torch.Generator | None) -> None:
        """Note a draw."""
        if generator is not None:
            self._known[identity(generator)].is_drawn = True


def identity(generator: torch.Generator) -> int:
    """Torch gives the ops one Python object after the other for a generator."""
    return int(storage_key(generator))
