"""In place: ops of a graph that write over a value which nothing needs any more, with the same kernels.

mul = aten.mul(w, 0.9)                  mul_ = aten.mul_(w, 0.9)
copy_ = aten.copy_(w, mul)   becomes
"""

from __future__ import annotations

import operator
from collections import Counter
from functools import cache
from typing import Any

import torch
from torch import fx

from foregrad.functionalize.pure_variants import Pure
from foregrad.program.dead_code import is_view, maker_of
from foregrad.record.ghosts.table import written_places
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.ops import OpOverload, overload_name, schema_of

aten = torch.ops.aten

#: Ops whose results lie where their first argument lies in a copy of all its memory, of which it may be a part.
_KEEPS_THE_REST = {
    aten.copy.default,
    aten.as_strided_scatter.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
}


def in_place(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, with ops in place where what they replace is dead; for graphs that write to their inputs."""
    if not any(n.target is aten.copy_.default for n in module.graph.nodes):
        return module
    graph = _InPlace(module.graph).rewritten()
    constants = {str(n.target): getattr(module, str(n.target)) for n in graph.nodes if n.op == "get_attr"}
    return lazy_graph_module(constants, graph, "InPlace")


class _InPlace:
    def __init__(self, graph: fx.Graph) -> None:
        self.nodes = list(graph.nodes)
        self.order = {n: i for i, n in enumerate(self.nodes)}
        self.targets = {n.args[1]: n.args[0] for n in self.nodes if n.target is aten.copy_.default}  # value: input
        self.last = self._last_reads()
        self.chains: set[fx.Node] = set()
        self._written_by: dict[fx.Node, list[Any]] = {}  # an optimizer's op writes to thousands
        self._find_chains()

    def _last_reads(self) -> dict[fx.Node, int]:
        """Where each value is read last, itself or through a view; results are read for ever."""
        last: dict[fx.Node, int] = {}
        for node in reversed(self.nodes):
            at = len(self.nodes) if node.op == "output" else self.order[node]
            at = max(at, last.get(node, 0)) if _looks(node) else at
            is_write = node.target is aten.copy_.default
            for read in [node.args[1]] if is_write else node.all_input_nodes:
                last[read] = max(last.get(read, 0), at)
        return last

    def _find_chains(self) -> None:
        """Values that are computed in the memory of the input that they end up in, each op in place."""
        paths = {value: path for value, target in self.targets.items() if (path := self._path(value, target))}
        while True:
            self.chains = {node for path in paths.values() for node in path}
            is_in_place = {maker: self._is_in_place(maker) for maker in dict.fromkeys(map(maker_of, self.chains))}
            broken = [v for v, path in paths.items() if not all(is_in_place[maker_of(node)] for node in path)]
            if not broken:
                return
            for value in broken:
                del paths[value]

    def _path(self, value: fx.Node, target: fx.Node) -> list[fx.Node]:
        """The values from an input to the one that is written there, each of which could replace the one before."""
        path, at = [], value
        while at is not target:
            before = self._replaces(at)
            is_last = before is not None and self.last.get(before) == self.order[maker_of(at)]
            if not is_last or _looks(before) or not _same(at, before):
                return []
            path.append(at)
            at = before
        return path

    def _replaces(self, value: fx.Node) -> Any:
        """The argument over which the op of a value would write it, if it can write in place at all."""
        node, place = maker_of(value), 0 if value.target is not operator.getitem else int(value.args[1])  # type: ignore[arg-type]
        if isinstance(node.target, Pure):
            has_results = any(r.alias_info is None for r in schema_of(node.target.op).returns)  # these come first
            return self._written(node)[place] if value is not node and not has_results else None
        if not has_in_place(node.target):
            return None
        first = node.args[0]
        if value is node:
            return first if isinstance(first, fx.Node) else None
        return first[place] if isinstance(first, (list, tuple)) else None

    def _written(self, node: fx.Node) -> list[Any]:
        """The values that the op of a node writes over."""
        if node in self._written_by:
            return self._written_by[node]
        found = self._written_by[node] = []
        for place in written_places(node.target.op, node.args, node.kwargs):  # type: ignore[union-attr]
            value = node.kwargs.get(place) if isinstance(place, str) else node.args[place]
            found += value if isinstance(value, (list, tuple)) else [value]
        return found

    # -- rewriting --------------------------------------------------------------------------------------

    def rewritten(self) -> fx.Graph:
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        items: dict[fx.Node, list[Any]] = {}
        for node in self.nodes:
            if node.target is aten.copy_.default and node.args[1] in self.chains:
                continue
            if node.target is operator.getitem and node.args[0] in items:
                copies[node] = copies[items[node.args[0]][node.args[1]]]
                continue
            copies[node] = graph.node_copy(node, copies.__getitem__)
            if node.op == "call_function" and node.target is not operator.getitem and self._is_in_place(node):
                if isinstance(node.target, Pure):
                    copies[node].target, items[node] = node.target.op, self._written(node)
                else:
                    copies[node].target = in_place_form(node.target)  # type: ignore[assignment]
                    if isinstance(node.args[0], (list, tuple)):
                        items[node] = list(node.args[0])
        return graph

    def _is_in_place(self, node: fx.Node) -> bool:
        values = [u for u in node.users if u.target is operator.getitem] if _gives_list(node) else [node]
        replaced = [(value, self._replaces(value)) for value in values]
        if isinstance(node.target, Pure):
            expected = len(self._written(node))
        else:
            expected = len(node.args[0]) if _gives_list(node) else 1  # type: ignore[arg-type]
        if len(replaced) != expected or not expected:
            return False
        reads = Counter(map(_root, node.all_input_nodes))
        if any(before is None or reads[_root(before)] > 1 for _, before in replaced):
            return False  # it reads what it would write over as another of its arguments too, in another order
        return all(v in self.chains or self._is_free(v, before) for v, before in replaced)

    def _is_free(self, value: fx.Node, before: fx.Node) -> bool:
        """Whether the memory of a value that the graph made itself can be used for another."""
        root = _root(before)
        is_whole = root.op == "call_function" and root.target not in _KEEPS_THE_REST
        is_whole = is_whole and _num_bytes(root) == _num_bytes(before)
        is_last = self.last.get(root) == self.order[maker_of(value)]
        return is_last and is_whole and root not in self.targets and _same(value, before)


def _gives_list(node: fx.Node) -> bool:
    return isinstance(node.target, Pure) or (has_in_place(node.target) and isinstance(node.args[0], (list, tuple)))


def _looks(node: fx.Node) -> bool:
    """Whether a value lies in the memory of another, whatever the op's schema says."""
    return is_view(node) or node.target is aten._unsafe_view.default


def _root(node: fx.Node) -> fx.Node:
    """The value in whose memory another lies."""
    while _looks(node):
        node = node.all_input_nodes[0]
    return node


def _num_bytes(node: fx.Node) -> int:
    spec = node.meta.get("spec")
    return -1 if spec is None else spec.num_bytes


def _same(value: fx.Node, before: Any) -> bool:
    if not isinstance(before, fx.Node):
        return False
    a, b = value.meta.get("spec"), before.meta.get("spec")
    return (
        a is not None and b is not None and a.is_dense and (a.shape, a.stride, a.dtype) == (b.shape, b.stride, b.dtype)
    )


def has_in_place(func: Any) -> bool:
    return isinstance(func, OpOverload) and in_place_form(func) is not None


@cache
def in_place_form(func: OpOverload) -> OpOverload | None:
    """`add_` for `add`: the op that computes the same, element by element, over its first argument."""
    namespace, name = schema_of(func).name.split("::")
    is_by_element = torch.Tag.pointwise in func.tags or name.startswith("_foreach_")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_", None)
    if not is_by_element or packet is None or overload_name(func) not in packet.overloads():
        return None
    found: OpOverload = getattr(packet, overload_name(func))
    ours = [(a.name, str(a.type)) for a in schema_of(func).arguments]
    return found if ours == [(a.name, str(a.type)) for a in schema_of(found).arguments] else None
