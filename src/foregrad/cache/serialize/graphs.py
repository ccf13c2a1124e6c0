"""Graphs as JSON and back: one list for each op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from foregrad.cache.serialize.plain_values import from_json, to_json
from foregrad.torch_private.fx_graph import lazy_graph_module

_META = ("spec", "grad_enabled", "is_again")


def graph_to_json(module: fx.GraphModule, other: Callable[[Any], Any]) -> Any:
    """A graph of ops; `other` describes targets, constants and what the ops' arguments hold beside plain values."""

    def argument(value: Any) -> Any:
        return {"is": "node", "name": value.name} if isinstance(value, fx.Node) else other(value)

    nodes = []
    for node in module.graph.nodes:
        target = other(node.target) if node.op == "call_function" else str(node.target)
        args, kwargs = to_json(_plain(node.args), argument), to_json(_plain(node.kwargs), argument)
        meta = {key: other(node.meta[key]) for key in _META if node.meta.get(key) is not None}
        nodes.append([node.op, node.name, target, args, kwargs, meta])
    constants = {n.target: other(getattr(module, n.target)) for n in module.graph.nodes if n.op == "get_attr"}
    return {"is": "graph", "nodes": nodes, "constants": constants}


def graph_from_json(data: Any, other: Callable[[Any], Any]) -> fx.GraphModule:
    """The graph that `graph_to_json` made this of."""
    graph, nodes = fx.Graph(), dict[str, fx.Node]()

    def argument(value: Any) -> Any:
        return nodes[value["name"]] if value.get("is") == "node" else other(value)

    for op, name, target, args, kwargs, meta in data["nodes"]:
        found = other(target) if op == "call_function" else target
        node = graph.create_node(op, found, from_json(args, argument), from_json(kwargs, argument), name)
        node.meta.update({key: other(meta[key]) for key in _META if key in meta})
        nodes[name] = node
    constants = {name: other(value) for name, value in data["constants"].items()}
    return lazy_graph_module(constants, graph, "Graph")


def _plain(value: Any) -> Any:
    """Arguments in the containers that JSON knows, in place of fx's own."""
    if isinstance(value, tuple):
        return tuple(_plain(v) for v in value)
    if isinstance(value, list):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value
