"""Linearity: whether a backward is linear in the gradients that arrive, as all of autograd's own formulas are.

The gradient of a linear function does not depend on where it is taken. A hook that clips what it is given has one that
does, and gives for two gradients one after the other something else than for their sum.
"""

from __future__ import annotations

from torch import fx

from foregrad.program.program import Program


def not_linear(program: Program) -> fx.Node | None:
    """An op of a backward, which is the forward of a program, by which it is not linear; None if there is none."""
    tangents = _tangents(program)
    found = _before(_gradients_of_tangents(program))
    dependent: set[fx.Node] = set()
    for node in program.graph.graph.nodes:
        if node in tangents or not dependent.isdisjoint(node.all_input_nodes):
            dependent.add(node)
            if node in found and node not in tangents:
                return node
    return None


def _tangents(program: Program) -> set[fx.Node]:
    """Gradients that arrive at the backward, and get gradients of their own."""
    placeholders = [node for node in program.graph.graph.nodes if node.op == "placeholder"]
    wanted = {one.name.replace(" ", "_") for one in program.signature.outputs if _is_of_tangent(one)}
    pairs = zip(placeholders, program.signature.inputs, strict=True)
    return {node for node, one in pairs if one.role == "tangent" and one.name in wanted}


def _gradients_of_tangents(program: Program) -> list[fx.Node]:
    results = program.graph.graph.output_node().args[0]
    pairs = zip(results, program.signature.outputs, strict=True)  # type: ignore[arg-type]
    return [node for node, one in pairs if _is_of_tangent(one) and isinstance(node, fx.Node)]


def _is_of_tangent(output: object) -> bool:
    return output.role == "grad" and output.name.startswith("tangent")  # type: ignore[attr-defined]


def _before(nodes: list[fx.Node]) -> set[fx.Node]:
    """These nodes, and all that they are computed from."""
    found: set[fx.Node] = set()
    waiting = [*nodes]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found
