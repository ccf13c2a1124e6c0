"""Size inputs: where sizes vary, each of them is an input of the program, whether or not an op takes it.

    x: f32[x.0, 8]                              x: f32[x.0, 8]
    sin = aten.sin(x)            f32[x.0, 8]    size x.0: int
                                         ->     sin = aten.sin(x)            f32[x.0, 8]

Op by op, a kernel asks its tensors. Compiled code makes its buffers and loops by these numbers, in forward, in backward
and in each region, where there may be no tensor of which one is a dimension.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import fx

from foregrad.core.signature import Input, Signature, identifier, unused
from foregrad.core.size import Size
from foregrad.core.spec import SizeSpec, in_order, symbols_in
from foregrad.core.tokens import TOKEN_ROLES
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied


def size_inputs(program: Program) -> Program:
    """The same program with an input for each size of a dimension that its values depend on."""
    found = [size for node in program.graph.graph.nodes for size in symbols_in(node.meta.get("spec"))]
    if not found:
        return program
    sizes = sorted({repr(size): size for size in found}.values(), key=in_order)
    made = copied(program.graph)
    place = len([one for one in program.signature.inputs if one.role not in TOKEN_ROLES])
    placeholders = [node for node in made.graph.nodes if node.op == "placeholder"]
    names = {node.name for node in made.graph.nodes}
    with made.graph.inserting_after(placeholders[place - 1]):
        for size in reversed(sizes):
            _add(made.graph, size, unused(identifier(str(size)), names))
    inputs = [Input("size", str(size), SizeSpec.make(size)) for size in sizes]
    signature = Signature(_with(program.signature.inputs, place, inputs), program.signature.outputs)
    calling = replace(program.calling, inputs=_with(program.calling.inputs, place, sizes))
    return replace(program, signature=signature, calling=calling).with_graph(made)


def _add(graph: fx.Graph, size: Size, name: str) -> None:
    node = graph.placeholder(name)
    node.meta.update(spec=SizeSpec.make(size), phase=0, role="size", is_written=False)


def _with(values: tuple[Any, ...], place: int, more: list[Any]) -> tuple[Any, ...]:
    return (*values[:place], *more, *values[place:])
