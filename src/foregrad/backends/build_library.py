"""Build a library: a graph as one shared library, called with no Python between its kernels.

Inductor's ahead-of-time mode writes the C++. What is the same in all libraries is compiled once for each machine, so
that a library takes about as long as Inductor's own kernels do. A library that was built before is found again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import fx

from foregrad.backends.library import Library
from foregrad.backends.lower import Lowered
from foregrad.backends.toolchain import digest, prepare
from foregrad.process.code_files import built
from foregrad.process.progress import part
from foregrad.torch_private.inductor import compile_library, library_key

#: What libraries are kept as. The number counts the ways in which we have built them: one of an older way is not found.
_NAME = "library-1"


def library(lowered: Lowered, **kind: Any) -> Library:
    """The library of a graph: one that was built before, or a new one."""
    places = _return_each_once(lowered.graph.graph)
    with part("ask the toolchain"):
        toolchain = prepare()
    with part("look for a library"):
        key = digest(library_key(lowered.graph, lowered.inputs, **kind))

    def build(folder: Path) -> dict[str, Path]:
        with part("generate and build code"):
            interface = str(toolchain.interface())
            made = Path(compile_library(lowered.graph, lowered.inputs, str(folder), f"graph_{key}", interface, **kind))
        by_suffix = {suffix: made.with_suffix(suffix) for suffix in (".so", ".json")}  # and the ops called by name
        return {suffix: file for suffix, file in by_suffix.items() if file.exists()}

    return Library(built(f"{_NAME}-{toolchain.name}-{key}", build), places, lowered.constants)


def _return_each_once(graph: fx.Graph) -> tuple[int | None, ...]:
    """Let a graph return each of its own values once; where its results then are: among these, or, counted from the
    end, among the inputs."""
    output = graph.output_node()
    results: Any = output.args[0]
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    own = [n for n in dict.fromkeys(results) if isinstance(n, fx.Node) and n.op != "placeholder"]
    output.args = (tuple(own),)
    positions = {node: place for place, node in enumerate(own)}
    positions |= {node: place - len(inputs) for place, node in enumerate(inputs)}
    return tuple(None if r is None else positions[r] for r in results)
