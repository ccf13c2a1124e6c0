"""Sums: many small matrix products that are added up, as one product of longer matrices.

    one = mm(t(g_1), x_1)                       g = cat([g_1, g_2, g_3]); x = cat([x_1, x_2, x_3])
    two = mm(t(g_2), x_2)               ->      sum = mm(t(g), x)
    three = mm(t(g_3), x_3)
    sum = add(add(one, two), three)

The gradient of a weight that is used many times is such a sum: in a recurrent net of as many terms as there are steps,
each of which would go over all of the weight. Up to rounding it is the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import Spec
from foregrad.passes.joined_matrices import joined, node_like
from foregrad.program.dead_code import clean
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied

aten = torch.ops.aten

#: What the factors of a sum may take together: they all live until it is computed.
_MOST_BYTES = 64 << 20


def one_product(program: Program) -> Program:
    """The same program, with one product for each sum of small ones."""
    if not any(_terms(node) for node in program.graph.graph.nodes):
        return program
    made = copied(program.graph)
    for node in list(made.graph.nodes):
        if terms := _terms(node):
            node.replace_all_uses_with(_product(node, terms))
    clean(made.graph)
    return program.with_graph(made)


def _terms(total: fx.Node) -> list[fx.Node]:
    """The products that a sum adds up, if one product is better."""
    if not _is_sum(total) or any(_continues(user, total) for user in total.users):
        return []
    found = Counter(_leaves(total))
    terms = [leaf for leaf, times in found.items() if times == 1 and _is_small(leaf, total)]
    num_bytes = sum(read.meta["spec"].plain().num_bytes for term in terms for read in term.args)  # type: ignore[union-attr]
    return terms if len(terms) > 1 and num_bytes <= _MOST_BYTES else []


def _leaves(total: fx.Node) -> list[fx.Node]:
    """What a sum of sums adds up, in order."""
    found: list[fx.Node] = []
    stack: list[Any] = [*reversed(total.args)]
    while stack:
        value = stack.pop()
        if _continues(total, value):
            stack += reversed(value.args)
        else:
            found.append(value)
    return found


def _is_sum(node: Any) -> bool:
    """Whether a node adds two tensors of one look."""
    if not isinstance(node, fx.Node) or node.target is not aten.add.Tensor or node.kwargs:
        return False
    return all(isinstance(arg, fx.Node) and arg.meta.get("spec") == node.meta["spec"] for arg in node.args)


def _continues(total: Any, part: Any) -> bool:
    """Whether a sum is nothing but a part of another one."""
    return _is_sum(total) and _is_sum(part) and len(part.users) == 1 and total.meta["phase"] == part.meta["phase"]


def _is_small(term: fx.Node, total: fx.Node) -> bool:
    """Whether a term is a product whose factors are smaller than itself, and of which nobody else knows."""
    if term.target is not aten.mm.default or len(term.users) > 1 or term.meta["phase"] != total.meta["phase"]:
        return False
    first, product = (node.meta["spec"].plain() for node in (term.args[0], term))  # type: ignore[union-attr]
    (rows, inner), columns = first.shape, product.shape[1]
    return bool(inner * (rows + columns) <= rows * columns) and type(term.meta["spec"]) is Spec


def _product(total: fx.Node, terms: list[fx.Node]) -> fx.Node:
    """The value of a sum, computed just before it."""
    terms = terms[::-1]  # backward begins with the last step, and the inputs of all steps may be one tensor
    firsts: Any = [term.args[0] for term in terms]
    seconds: Any = [term.args[1] for term in terms]
    with total.graph.inserting_before(total):
        if all(first.target is aten.t.default for first in firsts):
            long = joined(total, [first.args[0] for first in firsts], 0)
            shape, stride = long.meta["spec"].shape, long.meta["spec"].stride
            spec = replace(long.meta["spec"], shape=shape[::-1], stride=stride[::-1])
            long = node_like(total, aten.t.default, (long,), spec)
        else:
            long = joined(total, firsts, 1)
        value = node_like(total, aten.mm.default, (long, joined(total, seconds, 0)), terms[0].meta["spec"])
        for other in _leaves(total):
            if other not in terms:
                value = node_like(total, aten.add.Tensor, (value, other), total.meta["spec"])
    value.meta["key"] = total.meta.get("key", total.name)
    return value
