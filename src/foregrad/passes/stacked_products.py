"""Stack: small matrix products with one second factor, as one product of more rows.

    one = mm(x_1, w)                            rows = split(mm(cat([x_1, x_2, x_3]), w), 16)
    state_1 = tanh(add(mm(state, v), one))      state_1 = tanh(add(mm(state, v), rows[0]))
    two = mm(x_2, w)                    ->      state_2 = tanh(add(mm(state_1, v), rows[1]))
    state_2 = tanh(add(mm(state_1, v), two))    ...
    ...

What a recurrent net does with its inputs depends on no state, but is written step by step, and each step would go over
all of the weight. Up to rounding it is the same.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import Spec, contiguous_stride
from foregrad.passes.joined_matrices import joined, node_like
from foregrad.program.dead_code import clean, is_view, memory_of
from foregrad.program.program import Program
from foregrad.program.recompute_marks import MARK, copied

aten = torch.ops.aten

#: What the first factors and the results may take together: they live from the first product to the last.
_MOST_BYTES = 64 << 20
#: Rows of a product that goes over its second factor often enough by itself.
_MOST_ROWS = 128


def stacked(program: Program) -> Program:
    """The same program, with one product for small ones of one second factor that need not wait for each other."""
    if not any(_groups(program.graph.graph)):
        return program
    made = copied(program.graph)
    for group in list(_groups(made.graph)):
        _stack(group)
    clean(made.graph)
    return program.with_graph(made)


@dataclass
class _Group:
    """Products that can be one: the latest place that one of them reads from, and the first one that reads them."""

    products: list[fx.Node]
    ready: int
    needed: fx.Node
    num_bytes: int

    def add(self, other: _Group, place: dict[fx.Node, int]) -> bool:
        """Take another group in, if there is a place between what both read and who reads them."""
        needed = min(self.needed, other.needed, key=place.__getitem__)
        ready, num_bytes = max(self.ready, other.ready), self.num_bytes + other.num_bytes
        if ready >= place[needed] or num_bytes > _MOST_BYTES:
            return False
        self.products += other.products
        self.needed, self.ready, self.num_bytes = needed, ready, num_bytes
        return True


def _groups(graph: fx.Graph) -> Iterator[_Group]:
    """Products that one product can stand for, in the order of the graph."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    found: list[_Group] = []
    last: dict[Any, _Group] = {}
    for node in graph.nodes:
        if not _is_small(node) or not _is_hidden(node):
            continue
        *bias, a, b = node.args
        one = _Group(
            products=[node],
            ready=max(place[memory_of(read)] for read in node.all_input_nodes),
            needed=min(node.users, key=place.__getitem__),
            num_bytes=a.meta["spec"].num_bytes + node.meta["spec"].num_bytes,
        )
        kind = (node.target, *bias, _recipe(b), node.meta["phase"], a.meta["spec"], node.meta["spec"])
        if kind not in last or not last[kind].add(one, place):
            last[kind] = one
            found.append(one)
    return (group for group in found if len(group.products) > 1)


def _is_small(node: fx.Node) -> bool:
    """Whether a node is a product of few rows, whose second factor is larger than all else."""
    if node.target not in (aten.mm.default, aten.addmm.default) or node.kwargs or node.meta.get(MARK) is not None:
        return False
    specs = [node.meta["spec"], *(read.meta.get("spec") for read in node.args)]  # type: ignore[union-attr]
    if any(type(one) is not Spec or not all(type(n) is int for n in one.shape + one.stride) for one in specs):
        return False
    out, *bias, a, b = specs
    (rows, inner), columns = a.shape, b.shape[1]
    is_plain = out.stride == contiguous_stride(out.shape) and all(len(one.shape) == 1 for one in bias)
    return is_plain and rows <= _MOST_ROWS and rows * (inner + columns) <= inner * columns


def _is_hidden(node: fx.Node) -> bool:
    """Whether a value is read in its own phase only, and is no result: it would be one in the memory of others."""
    stack = [node]
    while stack:
        for user in stack.pop().users:
            if user.op == "output" or user.meta["phase"] != node.meta["phase"]:
                return False
            if is_view(user):
                stack.append(user)
    return bool(node.users)


def _recipe(value: Any) -> Any:
    """How a view is made, so that views of one tensor that are made alike are known as the same."""
    if not is_view(value):
        return value
    return value.target, *(_recipe(arg) if isinstance(arg, fx.Node) else repr(arg) for arg in value.args)


def _stack(group: _Group) -> None:
    """Put one product before whoever reads a result first, and let everyone read rows of it."""
    first = group.products[0]
    *bias, _, b = first.args
    place = {node: number for number, node in enumerate(first.graph.nodes)}
    for product in group.products:
        for read in product.all_input_nodes:
            _move_before(group.needed, read, place)
    num_rows, columns = first.meta["spec"].shape
    shape = (num_rows * len(group.products), columns)
    with first.graph.inserting_before(group.needed):
        rows = joined(first, [product.args[-2] for product in group.products], 0)  # type: ignore[misc]
        spec = replace(first.meta["spec"], shape=shape)
        long = node_like(first, first.target, (*bias, rows, b), spec)
        parts = node_like(first, aten.split.Tensor, (long, num_rows), None)
    for number, product in enumerate(group.products):
        with first.graph.inserting_before(max(group.needed, product, key=place.__getitem__)):
            part = node_like(product, operator.getitem, (parts, number), product.meta["spec"])
        part.meta["key"] = product.meta.get("key", product.name)
        product.replace_all_uses_with(part)


def _move_before(node: fx.Node, read: fx.Node, place: dict[fx.Node, int]) -> None:
    """Have a view made before a node; what it looks at is there."""
    if place[read] < place[node]:
        return
    for arg in read.all_input_nodes:
        _move_before(node, arg, place)
    node.prepend(read)
    place[read] = -1
