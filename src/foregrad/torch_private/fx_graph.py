"""Graph modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

__all__ = [
    "lazy_graph_module",
]


def lazy_graph_module(constants: Mapping[str, Any], graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph module whose Python code is written when it is first run or printed: most are only looked at."""
    return _LazyGraphModule(dict(constants), graph, class_name=name)
