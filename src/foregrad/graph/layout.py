"""Layout: where the boxes and arrows of a picture go. Layers from top to bottom, each node below all that lead to it.

1. Every node gets a layer: one below the lowest node that leads to it.
2. An edge over several layers passes through a narrow box in each, so that it crosses no other box; edges to one node
   share these.
3. Within a layer, boxes are sorted by where their neighbours are, up and down in turn, while edges cross less often.
4. Boxes move sideways towards their neighbours as far as the others in their layer let them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_GAP, _LAYER_GAP = 24.0, 46.0
_PASSING = 10.0  # the width of an edge that passes a layer
_SWEEPS, _FEW_SWEEPS, _MANY = 12, 4, 5000  # a picture of many boxes gets fewer


@dataclass(frozen=True)
class Box:
    """A node in the picture: its middle, its upper edge, and its size."""

    x: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Layout:
    """Boxes in the order of the nodes, and for each edge the points that it passes."""

    boxes: tuple[Box, ...]
    edges: tuple[tuple[int, int, tuple[tuple[float, float], ...]], ...]
    width: float
    height: float


def lay_out(sizes: Sequence[tuple[float, float]], following: Sequence[Sequence[int]]) -> Layout:
    """Places for nodes of these sizes, given in topological order with the nodes that each leads to."""
    layer = _layers(following)
    widths = [width for width, _ in sizes]
    chains, below = _with_passing(layer, following, widths)
    above: list[list[int]] = [[] for _ in widths]
    for node, nexts in enumerate(below):
        for following_node in nexts:
            above[following_node].append(node)
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for node, row in enumerate(layer):
        rows[row].append(node)
    rows = _sort_rows(rows, above, below)
    x = _move(rows, above, below, widths)
    left = min((x[n] - widths[n] / 2 for n in range(len(widths))), default=0)
    x = [value - left for value in x]
    heights = [max((sizes[n][1] for n in row if n < len(sizes)), default=0.0) for row in rows]
    tops = [sum(heights[:i]) + i * _LAYER_GAP for i in range(len(rows))]
    boxes = tuple(
        Box(x[n], tops[layer[n]] + (heights[layer[n]] - sizes[n][1]) / 2, *sizes[n]) for n in range(len(sizes))
    )
    edges = tuple(
        (first, last, _points(boxes, first, last, passing, x, layer, tops, heights)) for first, last, passing in chains
    )
    width = max((x[n] + widths[n] / 2 for n in range(len(widths))), default=0)
    return Layout(boxes, edges, width, tops[-1] + heights[-1] if rows else 0)


def _layers(following: Sequence[Sequence[int]]) -> list[int]:
    """As high as possible; then what leads to more nodes than lead to it goes down to where these are."""
    layer, num_sources = [0] * len(following), [0] * len(following)
    for node, nexts in enumerate(following):
        for target in nexts:
            layer[target] = max(layer[target], layer[node] + 1)
            num_sources[target] += 1
    for node in reversed(range(len(following))):
        if following[node] and len(following[node]) >= num_sources[node]:
            layer[node] = min(layer[target] for target in following[node]) - 1
    return layer


def _with_passing(
    layer: list[int], following: Sequence[Sequence[int]], widths: list[float]
) -> tuple[list[tuple[int, int, list[int]]], list[list[int]]]:
    """Each edge with the boxes that it passes through, which are added to `layer` and `widths`; and all next boxes.

    Edges to one node run together from where they meet.
    """
    chains: list[tuple[int, int, list[int]]] = []
    below: list[list[int]] = [[] for _ in following]
    shared: dict[tuple[int, int], int] = {}  # by the node that edges lead to, and the layer
    for node in range(len(following)):
        for target in dict.fromkeys(following[node]):
            passing: list[int] = []
            previous = node
            for row in range(layer[node] + 1, layer[target]):
                box = shared.get((target, row))
                if box is None:
                    box = shared[target, row] = len(layer)
                    layer.append(row)
                    widths.append(_PASSING)
                    below.append([])
                if box not in below[previous]:
                    below[previous].append(box)
                passing.append(box)
                previous = box
            if target not in below[previous]:
                below[previous].append(target)
            chains.append((node, target, passing))
    return chains, below


def _sort_rows(rows: list[list[int]], above: list[list[int]], below: list[list[int]]) -> list[list[int]]:
    """Each row by the mean place of its neighbours in the row above, then below, and so on; the best of all sweeps."""
    best, fewest = [list(row) for row in rows], _crossings(rows, below)
    for sweep in range(_sweeps(len(below))):
        down = sweep % 2 == 0
        order = range(1, len(rows)) if down else range(len(rows) - 2, -1, -1)
        for row in order:
            fixed = rows[row - 1 if down else row + 1]
            place = {node: i / max(len(fixed) - 1, 1) for i, node in enumerate(fixed)}
            near = above if down else below
            own = {node: i / max(len(rows[row]) - 1, 1) for i, node in enumerate(rows[row])}
            mean = {
                node: sum(place[other] for other in near[node]) / len(near[node]) if near[node] else own[node]
                for node in rows[row]
            }
            rows[row] = sorted(rows[row], key=mean.__getitem__)
        crossings = _crossings(rows, below)
        if crossings < fewest:
            best, fewest = [list(row) for row in rows], crossings
    return best


def _sweeps(num_boxes: int) -> int:
    return _SWEEPS if num_boxes < _MANY else _FEW_SWEEPS


def _crossings(rows: list[list[int]], below: list[list[int]]) -> int:
    count = 0
    for upper, lower in pairwise(rows):
        place = {node: i for i, node in enumerate(lower)}
        seen: list[int] = []
        for node in upper:
            ends = sorted(place[target] for target in below[node])
            count += sum(len(seen) - bisect_right(seen, end) for end in ends)
            for end in ends:
                insort(seen, end)
    return count


def _move(rows: list[list[int]], above: list[list[int]], below: list[list[int]], widths: list[float]) -> list[float]:
    """The middle of each box: as near to those of its neighbours as the order of its row allows."""
    x = [0.0] * len(widths)
    for row in rows:
        place = 0.0
        for node in row:
            x[node] = place + widths[node] / 2
            place += widths[node] + _GAP
        for node in row:
            x[node] -= place / 2
    for sweep in range(2 * _sweeps(len(below))):
        near = above if sweep % 2 == 0 else below
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wanted = [sum(x[other] for other in near[n]) / len(near[n]) if near[n] else x[n] for n in row]
            weights = [8.0 if widths[n] == _PASSING else 1.0 if near[n] else 0.1 for n in row]
            for node, value in zip(row, _spread(row, wanted, weights, widths), strict=True):
                x[node] = value
    return x


def _spread(row: list[int], wanted: list[float], weights: list[float], widths: list[float]) -> list[float]:
    """The places nearest to those wanted at which boxes keep their order and do not overlap.

    Less the widths to the left of each box, places only have to rise: neighbours that would fall are put together.
    """
    offsets = [0.0]
    for left, right in pairwise(row):
        offsets.append(offsets[-1] + (widths[left] + widths[right]) / 2 + _GAP)
    groups: list[tuple[float, float, int]] = []  # mean, weight, how many
    for value, weight, offset in zip(wanted, weights, offsets, strict=True):
        group = (value - offset, weight, 1)
        while groups and groups[-1][0] > group[0]:
            mean, total, count = groups.pop()
            group = ((mean * total + group[0] * group[1]) / (total + group[1]), total + group[1], count + group[2])
        groups.append(group)
    means = [mean for mean, _, count in groups for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]


def _points(
    boxes: tuple[Box, ...],
    first: int,
    last: int,
    passing: list[int],
    x: list[float],
    layer: list[int],
    tops: list[float],
    heights: list[float],
) -> tuple[tuple[float, float], ...]:
    """Down from a box, straight through each layer on the way, to the next box."""
    points = [(boxes[first].x, boxes[first].top + boxes[first].height)]
    points.append((boxes[first].x, tops[layer[first]] + heights[layer[first]]))
    for box in passing:
        points += [(x[box], tops[layer[box]]), (x[box], tops[layer[box]] + heights[layer[box]])]
    points.append((boxes[last].x, tops[layer[last]]))
    points.append((boxes[last].x, boxes[last].top))
    return tuple(dict.fromkeys(points))
