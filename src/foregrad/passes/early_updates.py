"""Updates: an input gets its new contents as soon as what they are made of is there.

    mm = mm(t(g_2), x_2)                         mm = mm(t(g_2), x_2)
    mm_1 = mm(t(g_1), x_1)                       addcdiv = addcdiv(w_2, ..., mm)
    addcdiv = addcdiv(w_2, ..., mm)      ->      mm_1 = mm(t(g_1), x_1)
    addcdiv_1 = addcdiv(w_1, ..., mm_1)          addcdiv_1 = addcdiv(w_1, ..., mm_1)

An optimizer goes over all weights at the end of a step, when neither they nor their gradients are in cache any more:
on large models its time is that of memory. This is for programs without a backward of their own, which write to their
inputs themselves (`passes/donation.py`): elsewhere new contents would only wait in memory of their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from torch import fx

from foregrad.program.dead_code import is_view
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied
from foregrad.record.trace import TracedInput


def early_updates(program: Program) -> Program:
    """The same program, with what only leads to new contents of inputs moved up."""
    if any(node.meta.get("phase") for node in program.graph.graph.nodes):
        return program
    made = copied(program.graph)
    moves = _moves(program, made.graph)
    for anchor, update in reversed(moves):
        for node in reversed(update):
            anchor.append(node)
    return program.with_graph(made) if moves else program


def _moves(program: Program, graph: fx.Graph) -> list[tuple[fx.Node, list[fx.Node]]]:
    """Each update that can come earlier, and the node after which it can."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    targets, found = _targets(program, graph), []
    for update in _updates(targets, graph):
        nodes = set(update)
        read = {arg for node in update for arg in node.all_input_nodes if arg not in nodes}
        overwritten = [target for node in update for target in targets.get(node, ())]
        readers = {user for target in overwritten for user in _readers(target) if user not in nodes}
        anchor = max(read | readers, key=place.__getitem__)
        if anchor.op == "call_function" and place[anchor] < place[update[0]] - 1:
            found.append((anchor, update))
    return found


def _targets(program: Program, graph: fx.Graph) -> dict[fx.Node, list[fx.Node]]:
    """Values that are nothing but new contents of inputs, and these inputs."""
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    inputs = zip(program.calling.inputs, placeholders, strict=True)
    input_of = {lifted.alias.object: node for lifted, node in inputs if isinstance(lifted, TracedInput)}
    found: dict[fx.Node, list[fx.Node]] = {}
    others: set[fx.Node] = set()
    values = graph.output_node().args[0]
    for value, output, target in zip(values, program.signature.outputs, program.calling.outputs, strict=True):  # type: ignore[arg-type]
        if isinstance(value, fx.Node) and output.role == "write" and target in input_of:
            found.setdefault(value, []).append(input_of[target])
        elif isinstance(value, fx.Node):
            others.add(value)
    return {value: inputs for value, inputs in found.items() if value not in others}


def _updates(targets: dict[fx.Node, list[fx.Node]], graph: fx.Graph) -> list[list[fx.Node]]:
    """Nodes that lead to such values and nowhere else, those together that depend on each other. What depends on
    inputs alone goes with what follows it: it could come first of all, but belongs there."""
    group: dict[fx.Node, list[fx.Node]] = {}
    output = graph.output_node()
    for node in reversed(graph.nodes):
        users = [user for user in node.users if user is not output]
        is_inner = node.op == "call_function" and (users or node in targets) and all(user in group for user in users)
        if not is_inner or (output in node.users and node not in targets):
            continue
        joined = sorted({id(group[user]): group[user] for user in users}.values(), key=len)
        largest = joined.pop() if joined else []
        for member in (node, *chain.from_iterable(joined)):
            largest.append(member)
            group[member] = largest
    order = {node: number for number, node in enumerate(graph.nodes)}
    found = {id(members): sorted(members, key=order.__getitem__) for members in group.values()}
    return list(_with_next(sorted(found.values(), key=lambda members: order[members[0]])))


def _with_next(groups: list[list[fx.Node]]) -> Iterator[list[fx.Node]]:
    waiting: list[fx.Node] = []
    for members in groups:
        waiting += members
        inside = set(members)
        if any(arg.op == "call_function" and arg not in inside for node in members for arg in node.all_input_nodes):
            yield waiting
            waiting = []


def _readers(node: fx.Node) -> Iterator[fx.Node]:
    """What reads the memory of an input."""
    for user in node.users:
        if user.op != "output":
            yield user
            if is_view(user):
                yield from _readers(user)
