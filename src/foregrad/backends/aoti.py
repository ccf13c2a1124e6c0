"""The `aoti` backend: each graph as one shared library, called with no Python between its kernels.

Inductor's ahead-of-time mode writes the C++. What is the same in all libraries is compiled once for each machine, so
that a library takes about as long as Inductor's own kernels do.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Runner
from foregrad.backends.guarded import Guarded, can_compile, with_memory
from foregrad.backends.inductor import Inductor, one_at_a_time
from foregrad.backends.numbers import with_tensors
from foregrad.backends.toolchain import digest, prepare
from foregrad.substrate_inductor import compile_library, inductor_error, library_runner

#: The linker's own digest of a library, in a note of that name.
_BUILD_ID = re.compile(rb"(?<=\x14\0\0\0\x03\0\0\0GNU\0).{20}", re.DOTALL)


@dataclass(frozen=True)
class AOTI:
    """Compiles graphs to shared libraries; draws numbers as `Inductor` does."""

    rng: str = "eager"

    def __call__(self, graph: fx.GraphModule, name: str) -> Runner:
        graph = with_memory(graph)
        if not can_compile(graph):
            return Inductor(rng=self.rng)(graph, name)
        try:
            with one_at_a_time:
                return Guarded(self._compile(graph, name), graph, name)
        except inductor_error() as error:
            _warn_refused(str(error).strip().splitlines()[0])
            return Inductor(rng=self.rng)(graph, name)

    def _compile(self, graph: fx.GraphModule, name: str) -> Runner:
        toolchain = prepare()
        interface = toolchain.interface()
        with Inductor(rng=self.rng).settings(graph):
            lowered = Inductor(rng=self.rng).lowered(graph)
            places = _return_each_once(lowered.graph.graph)
            home = toolchain.folder / "libraries"
            home.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=home) as folder:
                made = compile_library(
                    lowered.graph,
                    lowered.inputs,
                    folder,
                    f"graph_{digest(lowered.graph.code)}",
                    interface,
                    is_backward=name == "backward",
                )
                library = _move_into_place(Path(made), home)
        return with_tensors(graph, Library(library, places, lowered.constants))


class Library:
    """A loaded library: takes the graph's inputs and returns its outputs."""

    def __init__(self, library: Path, places: tuple[int | None, ...], constants: tuple[torch.Tensor, ...]) -> None:
        self.library = library
        self._run = library_runner(str(library))
        self._places = places
        self._constants = constants

    def __call__(self, *inputs: torch.Tensor) -> tuple[Any, ...]:
        given = [*inputs, *self._constants]
        values = self._run(given)
        values += given
        return tuple([None if place is None else values[place] for place in self._places])


def _return_each_once(graph: fx.Graph) -> tuple[int | None, ...]:
    """Let a graph return each of its own values once; where its results then are: among these, or the inputs after."""
    output = graph.output_node()
    results: Any = output.args[0]
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    own = [n for n in dict.fromkeys(results) if isinstance(n, fx.Node) and n.op != "placeholder"]
    output.args = (tuple(own),)
    positions = {node: place for place, node in enumerate([*own, *inputs])}
    return tuple(None if r is None else positions[r] for r in results)


def _move_into_place(made: Path, home: Path) -> Path:
    """Give a finished library, and the list of ops that it calls, its final name: one rename, so never a half.

    The name is that of the content, without the folder where it was made, so that the same graph is the same library.
    """
    kept = made.parent / "library"
    kept.mkdir()
    name = hashlib.sha256()
    for suffix in (".so", ".json"):
        if (file := made.with_suffix(suffix)).exists():
            content = file.read_bytes().replace(str(made.parent).encode(), b"")
            name.update(_BUILD_ID.sub(b"", content))
            file.rename(kept / f"graph{suffix}")
    final = home / name.hexdigest()[:32]
    try:
        os.rename(kept, final)
    except OSError:  # another process was first
        if not final.is_dir():
            raise
        shutil.rmtree(kept)
    return final / "graph.so"


@cache
def _warn_refused(reason: str) -> None:
    warnings.warn(
        f'a graph cannot be a library, so backend="inductor" runs it, with the same results: {reason}', stacklevel=5
    )
