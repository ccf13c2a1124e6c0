"""Verify: the rules that every program keeps, as a table."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx

from foregrad.core.errors import ProgramError
from foregrad.core.signature import INPUT_ROLES, OUTPUT_ROLES, Signature
from foregrad.core.tokens import after
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import Redraw, rng_state
from foregrad.program.dead_code import is_view
from foregrad.program.effect_chains import broken_links
from foregrad.program.recompute_marks import broken_marks
from foregrad.record.ghosts.table import HIDDEN_WRITES
from foregrad.torch_private.ops import OpOverload, schema_of


@dataclass(frozen=True)
class Checked:
    """What the rules look at."""

    graph: fx.Graph
    signature: Signature
    first_phase: int

    @property
    def calls(self) -> Iterator[fx.Node]:
        return (n for n in self.graph.nodes if n.op == "call_function")

    @property
    def results(self) -> tuple[Any, ...]:
        return tuple(self.graph.output_node().args[0])  # type: ignore[arg-type]


Rule = Callable[[Checked], Iterator[str]]


def broken_rules(graph: fx.Graph, signature: Signature, first_phase: int = 0) -> list[str]:
    """Every rule that does not hold, and where."""
    checked = Checked(graph, signature, first_phase)
    return [f"  {title}: {what}" for title, rule in RULES.items() for what in rule(checked)]


def refuse(name: str, broken: list[str]) -> None:
    """Raises `ProgramError` if any rule is broken, with all that are."""
    if broken:
        raise ProgramError(f"program {name} is not well formed:\n" + "\n".join(broken))


def _only_ops(program: Checked) -> Iterator[str]:
    for node in program.graph.nodes:
        if node.op not in ("placeholder", "call_function", "get_attr", "output"):
            yield f"{node.name} is a {node.op}"
        elif node.op == "call_function" and not _is_op(node.target):
            yield f"{node.name} calls {node.target}, which is no op"


def _is_op(target: Any) -> bool:
    return isinstance(target, (OpOverload, Pure, Redraw)) or target in (operator.getitem, after, rng_state)


def _no_writes(program: Checked) -> Iterator[str]:
    for node in program.calls:
        if isinstance(node.target, OpOverload):
            hidden = HIDDEN_WRITES.get(node.target)
            if schema_of(node.target).is_mutable or (hidden is not None and hidden(node.args)):
                yield f"{node.name} calls {node.target}, which writes to its arguments"


def _one_input_each(program: Checked) -> Iterator[str]:
    names = [n.name for n in program.graph.nodes if n.op == "placeholder"]
    if len(names) != len(program.signature.inputs):
        yield f"the graph has {len(names)} inputs, the signature {len(program.signature.inputs)}"


def _one_output_each(program: Checked) -> Iterator[str]:
    if len(program.results) != len(program.signature.outputs):
        yield f"the graph has {len(program.results)} outputs, the signature {len(program.signature.outputs)}"


def _known_roles(program: Checked) -> Iterator[str]:
    signature = program.signature
    yield from (f"input {i.name} has the role {i.role}" for i in signature.inputs if i.role not in INPUT_ROLES)
    yield from (f"output {o.name} has the role {o.role}" for o in signature.outputs if o.role not in OUTPUT_ROLES)


def _no_hidden_alias(program: Checked) -> Iterator[str]:
    """A result is a tensor of its own: no input, no view of one, and no two results in one memory."""
    roots: dict[fx.Node, str] = {}
    for result, output in zip(program.results, program.signature.outputs, strict=False):
        if not isinstance(result, fx.Node) or output.role not in ("output", "write"):
            continue
        root = result
        while is_view(root):
            root = root.all_input_nodes[0]
        if program.first_phase == 0 and root.op in ("placeholder", "get_attr"):
            yield f"{output.role} {output.name} shares memory with {root.name}"
        elif root in roots and program.first_phase == 0:
            yield f"{output.role} {output.name} shares memory with {roots[root]}"
        roots[root] = f"{output.role} {output.name}"


def _forward_first(program: Checked) -> Iterator[str]:
    for node in program.calls:
        later = [a.name for a in node.all_input_nodes if a.meta.get("phase", 0) > node.meta.get("phase", 0)]
        if later:
            yield f"{node.name} is forward but needs {', '.join(later)} of backward"


RULES: dict[str, Rule] = {
    "only ops are called": _only_ops,
    "nothing is written in place": _no_writes,
    "every input has a role and a name": _one_input_each,
    "every output has a role and a name": _one_output_each,
    "roles are known": _known_roles,
    "results share no memory": _no_hidden_alias,
    "forward does not wait for backward": _forward_first,
    "what is marked can be recomputed": lambda program: iter(broken_marks(program.graph)),
    "draws and effects are in order": lambda program: broken_links(program.graph, program.signature),
}
