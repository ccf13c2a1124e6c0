"""The order of nodes, and how graphs that Python has looked at are freed."""

from __future__ import annotations

import heapq
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from foregrad.torch_private.autograd_graph import sequence_number

#: How many nodes in a chain may free each other, one inside the other.
_SAFE_DEPTH = 1000
_KEY = "foregrad.freed later"


def in_order(starts: list[Any], is_inside: Callable[[Any], bool] = lambda node: True) -> list[Any]:
    """Every node behind some nodes, each before those that it leads to, as the engine runs them on one thread.

    It takes the node that was made last, accumulators first; what is equal comes as it was found. Only what can be
    reached through nodes inside counts.
    """
    starts = [node for node in dict.fromkeys(starts) if is_inside(node)]
    edges, place = _count_edges(starts, is_inside)
    ready = [(_priority(node), place[node], node) for node in starts if not edges[node]]
    heapq.heapify(ready)
    depth = dict.fromkeys(starts, 0)
    order = []
    while ready:
        node = heapq.heappop(ready)[2]
        order.append(node)
        for following in following_of(node):
            if following in place:
                depth[following] = max(depth.get(following, 0), depth[node] + 1)
                edges[following] -= 1
                if not edges[following]:
                    heapq.heappush(ready, (_priority(following), place[following], following))
    _free_in_steps(depth)
    return order


def following_of(node: Any) -> list[Any]:
    """The nodes that a node leads to, once for each edge."""
    return [following for following, _ in node.next_functions if following is not None]


def _count_edges(starts: list[Any], is_inside: Callable[[Any], bool]) -> tuple[Counter[Any], dict[Any, int]]:
    """How many edges lead to each node, and the nodes as they are found."""
    edges: Counter[Any] = Counter()
    place = {node: number for number, node in enumerate(starts)}
    stack = list(starts)
    while stack:
        for following in following_of(stack.pop()):
            if following in place or is_inside(following):
                edges[following] += 1
                if following not in place:
                    place[following] = len(place)
                    stack.append(following)
    return edges, place


def _priority(node: Any) -> float:
    number = sequence_number(node)
    return float("-inf") if number is None else -number


def _free_in_steps(depth: dict[Any, int]) -> None:
    """Keep a long chain from overflowing the stack when it is freed.

    Torch 2.13 keeps the Python object of a node for as long as the node lives, and frees nodes that have one by
    recursion: tens of thousands in a chain that someone has looked at crash the process. Here and there a node owns the
    next one through an object that frees it once the call that frees the first has returned.
    """
    if max(depth.values(), default=0) < _SAFE_DEPTH:
        return
    for node, level in depth.items():
        for following in following_of(node):
            if depth.get(following, 0) // _SAFE_DEPTH > level // _SAFE_DEPTH:
                node.metadata.setdefault(_KEY, {}).setdefault(id(following), _FreedLater(following))


class _FreedLater:
    """Owns a node."""

    def __init__(self, node: Any) -> None:
        self._node = node

    def __del__(self) -> None:
        waiting = getattr(_freeing, "waiting", None)
        if waiting is not None:
            waiting.append(self.__dict__.pop("_node"))
            return
        _freeing.waiting = waiting = [self.__dict__.pop("_node")]
        while waiting:
            waiting.pop()  # may add others
        _freeing.waiting = None


_freeing = threading.local()
