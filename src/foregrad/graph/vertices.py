"""Vertices: the nodes of a graph, or of a program, as plain data: what `memory`, `render` and `diff` look at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from foregrad.core.spec import Spec, contiguous_stride
from foregrad.graph.modules import module_of, parameter_of
from foregrad.graph.nodes import name_of, walk
from foregrad.graph.order import following_of
from foregrad.graph.policy import memory_of, spec_of
from foregrad.graph.saved import Saved, saved, saved_in
from foregrad.program.program import Program
from foregrad.torch_private.autograd_graph import leaf_of


@dataclass(frozen=True)
class Vertex:
    """A node, what it saves, and the vertices that it leads to, by their place."""

    name: str
    kind: str  # "node", or "leaf" for what enters: a leaf of the graph, an input of a program
    module: str
    specs: tuple[Spec, ...]  # of the gradients that arrive at a node, of a leaf, or of a value in a program
    saved: tuple[Saved, ...]
    following: tuple[int, ...]
    phase: str = "backward"  # in a program: "forward" or "backward"
    owned: dict[Any, int] = field(
        default_factory=dict, repr=False
    )  # memory that is alive anyway, as in `Saved.storages`

    def text(self) -> str:
        """One line: `MulBackward0 f32[3]  saves other f32[3]  [fc]`."""
        parts = [" ".join([self.name, *map(str, self.specs)])]
        parts += ["saves " + ", ".join(map(str, self.saved))] if self.saved else []
        parts += [f"[{self.module}]"] if self.module else []
        return "  ".join(parts)


def vertices_of(outputs: Any) -> list[Vertex]:
    """The nodes behind some outputs, or those of a program, in the order of `walk`."""
    nodes = walk(outputs)
    place = {node: number for number, node in enumerate(nodes)}
    if isinstance(outputs, Program):
        kept = saved_in(outputs)
        inputs = iter(outputs.signature.inputs)
        names = {node: next(inputs).name for node in nodes if node.op == "placeholder"}
        return [
            _of_program(node, names.get(node), kept.get(node.name), [place[user] for user in node.users])
            for node in nodes
        ]
    return [_of_graph(node, [place[following] for following in following_of(node)]) for node in nodes]


def _of_graph(node: Any, following: list[int]) -> Vertex:
    leaf = leaf_of(node)
    if leaf is not None:
        name = parameter_of(node) or "leaf"
        module = name.rpartition(".")[0]
        return Vertex(name, "leaf", module, (spec_of(leaf),), (), tuple(following), owned=memory_of([leaf]))
    specs = [_arriving(one) for one in node._input_metadata]
    return Vertex(name_of(node), "node", module_of(node), tuple(specs), tuple(saved(node)), tuple(following))


def _arriving(metadata: Any) -> Spec:
    shape = tuple(metadata.shape)
    return Spec(shape, contiguous_stride(shape), metadata.dtype, metadata.device)


def _of_program(node: Any, name: str | None, kept: Saved | None, following: list[int]) -> Vertex:
    is_leaf = node.op in ("placeholder", "get_attr")
    spec = node.meta.get("spec")
    if name is None:
        name = f"{node.name} = {name_of(node)}" if node.op == "call_function" else node.op
    return Vertex(
        name,
        "leaf" if is_leaf else "node",
        module_of(node),
        (spec,) if isinstance(spec, Spec) else (),
        (kept,) if kept is not None else (),
        tuple(following),
        "backward" if node.meta.get("phase", 0) else "forward",
        dict(kept.storages) if kept is not None and is_leaf else {},
    )
