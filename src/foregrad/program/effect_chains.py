"""Chains: the order of random draws and of effects, as values of the graph.

rand = aten.rand([3])                   rand = aten.rand([3])
mul = aten.mul(x, rand)     becomes     rng_cpu_1 = after(rng_cpu, rand)
return (mul,)                           mul = aten.mul(x, rand)
                                        return (mul, rng_cpu_1)

There is a chain for each generator and for each kind of effect, in forward and in backward. The state of a device whose
generator counts (Philox) is a seed and an offset, of which draws change the offset. `unlinked` takes the chains out
again for backends, which run the ops of a graph in its order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from torch import fx

from foregrad.core.signature import Input, Output, Signature
from foregrad.core.spec import TokenSpec
from foregrad.core.tokens import TOKEN_ROLES, after
from foregrad.program.dead_code import op_of
from foregrad.record.impure import draws, effect_of
from foregrad.torch_private.fx_graph import lazy_graph_module

_BACKWARD = " in backward"

#: Devices whose generators are a seed and a count of numbers drawn.
PHILOX = ("cuda", "xpu")


@dataclass(frozen=True)
class Chain:
    """What orders some ops of one phase: the state of a generator, or effects of one kind."""

    kind: str  # "rng" or "token"
    of: str | fx.Node  # a device, a generator of the user's, or a kind of effect
    phase: int

    @property
    def role(self) -> str:
        return self.kind + (_BACKWARD if self.phase else "")

    @property
    def parts(self) -> tuple[str, ...]:
        """What the state consists of; links follow the last part."""
        counts = isinstance(self.of, str) and self.of.partition(":")[0] in PHILOX
        return ("seed", "offset") if counts and self.kind == "rng" else ("token",)

    @property
    def name(self) -> str:
        name = self.of if isinstance(self.of, str) else self.of.name
        return name if self.phase < 2 else f"{name} {self.phase}"

    @property
    def inputs(self) -> tuple[Input, ...]:
        """What the chain begins with."""
        names = [f"{self.name} {part}" if len(self.parts) > 1 else self.name for part in self.parts]
        device = self.of if self.kind == "rng" and isinstance(self.of, str) else "cpu"
        return tuple(Input(self.role, n, TokenSpec.make(p, device)) for n, p in zip(names, self.parts, strict=True))


def chains_of(node: fx.Node) -> Iterator[Chain]:
    """The chains that a node belongs to."""
    func = op_of(node) if node.op == "call_function" else None
    if func is None:
        return
    phase = int(node.meta.get("phase", 0))
    if draws(func, node.args, node.kwargs):
        yield Chain("rng", _generator(node) or _device(node), phase)
    effect = effect_of(func)
    if effect is not None:
        yield Chain("token", effect, phase)


def _generator(node: fx.Node) -> fx.Node | None:
    """The generator of the user's that an op draws from: a constant of the graph."""
    return next((n for n in node.all_input_nodes if "generator" in n.meta), None)


def _device(node: fx.Node) -> str:
    """Where an op draws: on the device of what it gives, or of what it is given."""
    for value in (node, *node.users, *node.all_input_nodes):
        spec = value.meta.get("spec")
        if spec is not None:
            return str(spec.device)
    return "cpu"


# -- linking ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ends:
    """What the chains of a graph add to its inputs and outputs, after all others."""

    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]


def link(graph: fx.Graph) -> Ends:
    """Add the chains to a finished graph."""
    last: dict[Chain, fx.Node] = {}
    inputs: list[Input] = []
    outputs: list[Output] = []
    for node in list(graph.nodes):
        for chain in chains_of(node):
            if chain not in last:
                last[chain] = [_placeholder(graph, one, chain.phase) for one in chain.inputs][-1]
                inputs += chain.inputs
                outputs.append(Output(chain.role, inputs[-1].name, inputs[-1].spec))
            before = last[chain]
            with graph.inserting_after(node):
                name = _identifier(chain.inputs[-1])
                last[chain] = graph.create_node("call_function", after, (before, node), name=name)
            last[chain].meta.update(phase=chain.phase, spec=before.meta["spec"], origin=node.meta.get("origin"))
    output = graph.output_node()
    output.args = ((*output.args[0], *last.values()),)  # type: ignore[misc]
    return Ends(tuple(inputs), tuple(outputs))


def _placeholder(graph: fx.Graph, one: Input, phase: int) -> fx.Node:
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    with graph.inserting_after(placeholders[-1]) if placeholders else graph.inserting_before():
        node = graph.placeholder(_identifier(one))
    node.meta.update(spec=one.spec, phase=phase, role=one.role)
    return node


def _identifier(one: Input) -> str:
    return re.sub(r"\W+", "_", f"{one.role} {one.name}")


def unlinked(module: fx.GraphModule, signature: Signature) -> tuple[fx.GraphModule, Signature]:
    """The same graph and signature without chains."""
    if not signature.inputs_of(*TOKEN_ROLES):
        return module, signature
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        is_end = node.op == "placeholder" and isinstance(node.meta.get("spec"), TokenSpec)
        if node.target is not after and not is_end and node.op != "output":
            copies[node] = graph.node_copy(node, copies.__getitem__)
    results: Any = module.graph.output_node().args[0]
    kept = [r for r, o in zip(results, signature.outputs, strict=True) if o.role not in TOKEN_ROLES]
    graph.output(tuple(copies[r] if isinstance(r, fx.Node) else r for r in kept))
    constants = {str(n.target): getattr(module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    inputs = tuple(i for i in signature.inputs if i.role not in TOKEN_ROLES)
    outputs = tuple(o for o in signature.outputs if o.role not in TOKEN_ROLES)
    return lazy_graph_module(constants, graph, "Program"), replace(signature, inputs=inputs, outputs=outputs)


# -- checking -----------------------------------------------------------------------------------------------


def broken_links(graph: fx.Graph, signature: Signature) -> Iterator[str]:
    """Where a chain does not hold each of its ops, once, in the order of the graph, from its input to its output."""
    order = {n: i for i, n in enumerate(graph.nodes)}
    held: dict[Any, list[str]] = {}
    for first, last in _ends(graph, signature):
        begin, *links = _walk(last)
        ops, role = [link.args[1] for link in links], str(first.meta.get("role"))
        if begin is not first:
            yield f"the chain that gives {_text(last)} does not begin at {first.name}"
        if len({chain for op in ops for chain in chains_of(op) if chain.role == role}) > 1:
            yield f"{first.name} holds what belongs to several chains"
        for one, other in pairwise(ops):
            if order[one] > order[other]:
                yield f"{one.name} runs after {other.name}, which {first.name} has after it"
        for op in ops:
            held.setdefault(op, []).append(role)
    for node in graph.nodes:
        yield from _broken_op(node, held.get(node, []))
        if node.target is after and not node.users:
            yield f"{node.name} is on no chain"


def _broken_op(node: fx.Node, found: list[str]) -> Iterator[str]:
    """Whether an op is held by the chains that it belongs to, and by no other; `found` are the roles of those."""
    wanted = [chain.role for chain in chains_of(node)]
    for role in sorted({*wanted, *found}):
        if found.count(role) < wanted.count(role):
            calls = f"{node.name} calls {node.target}"
            yield f"{calls}, and no chain of role {role!r} holds it; program.relinked() adds it to one"
        elif found.count(role) > wanted.count(role):
            what = "twice: were two ops merged?" if role in wanted else "though it is neither random nor has an effect"
            yield f"{node.name} is held by a chain of role {role!r} {what}"


def _walk(last: Any) -> list[Any]:
    """A chain from its input on."""
    chain = [last]
    while isinstance(chain[-1], fx.Node) and chain[-1].target is after:
        chain.append(chain[-1].args[0])
    return chain[::-1]


def _ends(graph: fx.Graph, signature: Signature) -> list[tuple[fx.Node, Any]]:
    """The input and the output of each chain."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    results: Any = graph.output_node().args[0]
    inputs = zip(placeholders, signature.inputs, strict=False)
    first = [n for n, i in inputs if i.role in TOKEN_ROLES and str(i.spec) != "seed"]
    last = [r for r, o in zip(results, signature.outputs, strict=False) if o.role in TOKEN_ROLES]
    return list(zip(first, last, strict=False))


def _text(value: Any) -> str:
    return value.name if isinstance(value, fx.Node) else str(value)
