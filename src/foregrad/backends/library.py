"""Library: a shared library that was built from a graph, loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from foregrad.torch_private.serialization import library_runner


class Library:
    """A loaded library: takes the graph's inputs and returns its outputs."""

    def __init__(self, path: Path, places: tuple[int | None, ...], constants: tuple[torch.Tensor, ...]) -> None:
        self.library = path
        ops = path.with_suffix(".json")
        #: where torch finds the ops that it calls by name, if there are any
        self.ops = ops if ops.exists() else None
        self.places = places
        self.constants = constants
        self._run = library_runner(str(path))
        #: whether a call is one of the library itself, with nothing added to what is given and returned
        self.is_plain = not constants and places == tuple(range(len(places)))

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        if self.is_plain:
            return tuple(self._run(list(inputs)))
        given = [*inputs, *self.constants]
        values = self._run(given)
        values += given
        return tuple([None if place is None else values[place] for place in self.places])
