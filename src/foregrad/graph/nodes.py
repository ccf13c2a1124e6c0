"""Nodes and edges of the autograd graph: what they are, in which order they run, and where to find them."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils.hooks import RemovableHandle

from foregrad.graph.modules import module_of
from foregrad.graph.order import following_of, in_order
from foregrad.program.printer import target_text
from foregrad.program.program import Program
from foregrad.torch_private.autograd_graph import is_node_type


class Node(ABC):
    """Every node of the autograd graph is one: those of C++, also without a Python name, and those of Python."""

    @abstractmethod
    def name(self) -> str:
        """`MulBackward0`."""

    @property
    @abstractmethod
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The edges: the node that each gradient goes to, and to which of its inputs."""

    @property
    @abstractmethod
    def metadata(self) -> dict[Any, Any]:
        """Whatever you put there; it stays with the node."""

    @abstractmethod
    def register_hook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_inputs, grad_outputs)` after the node has run; what it returns replaces `grad_inputs`."""

    @abstractmethod
    def register_prehook(self, fn: Callable[..., Any]) -> RemovableHandle:
        """Call `fn(grad_outputs)` before the node runs; what it returns replaces `grad_outputs`."""

    @abstractmethod
    def _sequence_nr(self) -> int:
        """How many nodes its thread had made when it was made."""

    @property
    @abstractmethod
    def _input_metadata(self) -> list[Any]:
        """Shape, dtype and device of each gradient that arrives."""

    @classmethod
    def __subclasshook__(cls, kind: type) -> bool:
        return True if cls is Node and is_node_type(kind) else NotImplemented


def walk(outputs: Any) -> list[Any]:
    """Every node behind some outputs, in the order in which a backward on one thread runs them: each before those
    that it leads to.

    Outputs are tensors, gradient edges or nodes, or lists and dicts of them. The nodes of a `Program` come in the order
    of its graph.
    """
    if isinstance(outputs, Program):
        return list(outputs.graph.graph.nodes)
    return in_order(starts_of(outputs))


def find(outputs: Any, name: str | re.Pattern[str] | None = None, module: str | None = None) -> list[Any]:
    """The nodes behind some outputs that have a name, or come from a module or one below it; in the order of `walk`.

    `name` and `module` may hold `*` and `?`; `name` may be a compiled regular expression too. In a program, the name is
    the op's (`aten.mul`) or the value's. Nodes know their module if the forward ran inside `track_modules`.
    """
    nodes = walk(outputs)
    if module is not None and nodes and not any(module_of(node) for node in nodes):
        raise ValueError(
            "no node of this graph says which module it comes from: "
            "run the forward inside `with foregrad.graph.track_modules(model):`"
        )
    return [node for node in nodes if _has_name(node, name) and _is_in(module_of(node), module)]


def will_run(outputs: Any, inputs: Any = None, *, only_capture: bool = False) -> list[Node]:
    """The nodes that `backward(inputs=inputs)` runs, in the order of `walk`; without inputs, all of them.

    `torch.autograd.grad` takes the gradients of its inputs away before the nodes of these run: `only_capture=True`.
    """
    order: list[Node] = walk(edges_of(outputs))
    if inputs is None:
        return order
    targets = set(starts_of(inputs))
    leads = {node for node in order if node in targets and not only_capture}
    for node in reversed(order):
        if any(following in leads or following in targets for following in following_of(node)):
            leads.add(node)
    return [node for node in order if node in leads]


def name_of(node: Any) -> str:
    """`MulBackward0` of a node, `aten.mul` of a node in a program."""
    if not isinstance(node, torch.fx.Node):
        return str(node.name())
    return target_text(node.target) if node.op == "call_function" else node.op


def starts_of(outputs: Any) -> list[Node]:
    """The nodes that outputs come from; tensors without a gradient have none."""
    starts: list[Any] = [edge.node for edge in edges_of(outputs)]
    if not starts:
        raise ValueError("none of these requires grad: there is no graph behind them")
    return starts


def edges_of(outputs: Any) -> list[GradientEdge]:
    """Outputs as gradient edges, in order; what has no gradient is left out."""
    found: list[GradientEdge] = []
    stack = [outputs]
    while stack:
        one = stack.pop()
        if isinstance(one, GradientEdge):
            found.append(one)
        elif isinstance(one, torch.Tensor):
            found += [get_gradient_edge(one)] if one.requires_grad else []
        elif isinstance(one, Node):
            found.append(GradientEdge(one, 0))  # type: ignore[arg-type]
        elif isinstance(one, Mapping):
            stack.extend(reversed(list(one.values())))
        elif isinstance(one, Iterable) and not isinstance(one, str | bytes):
            stack.extend(reversed(list(one)))
    return found


def _has_name(node: Any, name: str | re.Pattern[str] | None) -> bool:
    if name is None:
        return True
    names = [name_of(node), node.name] if isinstance(node, torch.fx.Node) else [name_of(node)]
    if isinstance(name, re.Pattern):
        return any(name.search(one) for one in names)
    return any(fnmatchcase(one, name) for one in names)


def _is_in(path: str, module: str | None) -> bool:
    return module is None or fnmatchcase(path, module) or fnmatchcase(path, f"{module}.*")
