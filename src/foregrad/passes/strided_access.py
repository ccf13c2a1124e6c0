"""Strided access: `as_strided` reads and writes, as ordinary views of the value that lies there.

    a = as_strided(copy, [4, 8], [8, 1], 128)              ->  s = slice(view(copy, [160]), 0, 128, 160)
                                                               a = view(s, [4, 8])
    b = as_strided_scatter(copy, zeros, [4, 8], [8, 1], 128)
    c = as_strided(b, [4, 8], [8, 1], 96)                  ->  the same of `copy`, at 96: `b` was written elsewhere

Autograd goes by places in memory wherever a view was written to, as in `out[i] = y`. A compiler chooses itself where
values lie, so that it cannot; it can take views. A value that an op has just made lies in memory of its own, of
which its strides say everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import Spec
from foregrad.program.dead_code import clean, is_view, memory_of
from foregrad.program.program import Program
from foregrad.program.recompute_marks import copied
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten

#: Ops whose results fill memory of their own, from its beginning on; so do those that work on each element by itself.
_MAKE_THEIR_OWN = {
    aten.clone.default,
    aten.empty.memory_format,
    aten.empty_like.default,
    aten.empty_strided.default,
    aten.full.default,
    aten.full_like.default,
    aten.new_empty.default,
    aten.new_empty_strided.default,
    aten.new_full.default,
    aten.new_ones.default,
    aten.new_zeros.default,
    aten.ones.default,
    aten.ones_like.default,
    aten.zeros.default,
    aten.zeros_like.default,
}

#: Ops that copy all of the memory in which their argument lies, and keep its place there.
_COPY_MEMORY = {
    aten.as_strided_scatter.default,
    aten.copy.default,
    aten.diagonal_scatter.default,
    aten.select_scatter.default,
    aten.slice_scatter.default,
}

#: Up to how many places are compared one by one.
_FEW = 1 << 16


@dataclass(frozen=True)
class Place:
    """Elements of a piece of memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def extent(self) -> int:
        return 1 + sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))

    @staticmethod
    def of(node: fx.Node) -> Place | None:
        """Where an op reads or writes; None where that is not fixed."""
        size, stride, *rest = node.args[2:] if node.target is aten.as_strided_scatter.default else node.args[1:]
        offset = rest[0] if rest else node.kwargs.get("storage_offset")
        numbers = [*size, *stride, offset]  # type: ignore[misc]
        if not all(type(number) is int for number in numbers) or 0 in size:  # type: ignore[operator]
            return None
        return Place(tuple(size), tuple(stride), offset)  # type: ignore[arg-type]


def by_views(program: Program) -> Program:
    """The same program with views in place of reads and writes by places in memory, where these are known."""
    if not _by_place(program.graph.graph):
        return program
    made = copied(program.graph)
    graph = made.graph
    found = _by_place(graph)
    for node in found:
        if node.target is aten.as_strided.default:
            node.args = (_before_writes_elsewhere(node, found), *node.args[1:])
    for node, place in found.items():
        _replace(graph, node, place)
    clean(graph)
    return program.with_graph(made)


def _by_place(graph: fx.Graph) -> dict[fx.Node, Place]:
    """The ops that go by places in the memory of a value that has its own, and these places."""
    own: set[fx.Node] = set()
    found: dict[fx.Node, Place] = {}
    for node in graph.nodes:
        if _makes_its_own(node, own):
            own.add(node)
        if node.target in (aten.as_strided.default, aten.as_strided_scatter.default):
            value: Any = node.args[0]
            place = Place.of(node)
            is_whole = node.target is aten.as_strided.default or value in own
            if place is not None and is_whole and memory_of(value) in own and _is_known(value, node, place):
                found[node] = place
    return found


def _makes_its_own(node: fx.Node, own: set[fx.Node]) -> bool:
    func = node.target
    if not isinstance(func, OpOverload) or is_view(node) or type(node.meta.get("spec")) is not Spec:
        return False
    is_new = func in _MAKE_THEIR_OWN or torch.Tag.pointwise in func.tags
    return is_new or (func in _COPY_MEMORY and node.args[0] in own)


def _is_known(value: fx.Node, node: fx.Node, place: Place) -> bool:
    """Whether strides say where the elements of a value are, and views lead to a place among them."""
    spec, seen, result = (one.meta["spec"] for one in (memory_of(value), value, node))
    is_plain = all(type(number) is int for number in spec.shape + spec.stride) and not spec.dtype.is_complex
    is_alike = spec.dtype == seen.dtype == result.dtype
    return is_plain and is_alike and spec.is_dense and _way_to(spec.num_elements, place) is not None


def _before_writes_elsewhere(node: fx.Node, places: dict[fx.Node, Place]) -> fx.Node:
    """What a read sees: a value from before writes to other places."""
    root = memory_of(node.args[0])  # type: ignore[arg-type]
    while root.target is aten.as_strided_scatter.default and root in places and _are_apart(places[node], places[root]):
        root = root.args[0]  # type: ignore[assignment]
    return root


@lru_cache(1 << 12)
def _are_apart(a: Place, b: Place) -> bool:
    """Whether two places have no element in common, as far as that is soon known."""
    if a.offset + a.extent <= b.offset or b.offset + b.extent <= a.offset:
        return True
    if max(a.extent, b.extent) > _FEW:
        return False
    return not torch.isin(_elements(a), _elements(b)).any()


def _elements(place: Place) -> torch.Tensor:
    found = torch.tensor([place.offset], device="cpu")
    for size, stride in zip(place.size, place.stride, strict=True):
        found = (found[:, None] + torch.arange(size, device="cpu") * stride).reshape(-1)
    return found


# -- a place as views of a row of numbers --------------------------------------------------------------------

#: A view op and its arguments after the first.
View = tuple[OpOverload, tuple[Any, ...]]


@lru_cache(1 << 12)
def _way_to(length: int, place: Place) -> tuple[View, ...] | None:
    """Views that lead from a row of so many numbers to a place among them, if there are any: the row is cut into pieces
    as long as the largest stride, each of these into pieces as long as the next one, and so on."""
    dims = sorted((d for d, size in enumerate(place.size) if size > 1), key=lambda d: -place.stride[d])
    views: list[View] = []
    shape: tuple[int, ...] = ()
    rest, offset = length, place.offset
    for number, dim in enumerate(dims):
        size, stride = place.size[dim], place.stride[dim]
        if stride <= 0:
            return None
        if number == len(dims) - 1:
            break
        inside = 1 + sum((place.size[d] - 1) * place.stride[d] for d in dims[number + 1 :])
        first, last = max(0, offset + inside - stride), min(offset, rest - size * stride)
        if first > last:
            return None
        aligned = offset // stride * stride
        start = aligned if first <= aligned <= last else first
        views += _part(len(shape), rest, start, start + size * stride)
        shape, rest, offset = (*shape, size), stride, offset - start
        views.append((aten.view.default, ([*shape, rest],)))
    size, stride = (place.size[dims[-1]], place.stride[dims[-1]]) if dims else (1, 1)
    views += _part(len(shape), rest, offset, offset + (size - 1) * stride + 1, stride)
    if not dims:
        views.append((aten.squeeze.dim, (0,)))
    ranks = sorted(dims)
    if dims != ranks:
        views.append((aten.permute.default, ([dims.index(d) for d in ranks],)))
    views += [(aten.unsqueeze.default, (d,)) for d, size in enumerate(place.size) if size == 1]
    return tuple(views) if _leads_to(views, length, place) else None


def _part(dim: int, length: int, start: int, end: int, step: int = 1) -> list[View]:
    return [] if (start, end, step) == (0, length, 1) else [(aten.slice.Tensor, (dim, start, end, step))]


def _leads_to(views: list[View], length: int, place: Place) -> bool:
    """Whether views show exactly the elements of a place: a check of the above."""
    seen = torch.empty(length, device="meta")
    for func, args in views:
        seen = func(seen, *args)
    strides = zip(seen.shape, seen.stride(), place.stride, strict=True) if tuple(seen.shape) == place.size else ()
    return (
        seen.storage_offset() == place.offset
        and tuple(seen.shape) == place.size
        and all(size == 1 or ours == wanted for size, ours, wanted in strides)
    )


# -- and in a graph ------------------------------------------------------------------------------------------


def _replace(graph: fx.Graph, node: fx.Node, place: Place) -> None:
    root = memory_of(node.args[0])  # type: ignore[arg-type]
    way = _way_to(root.meta["spec"].num_elements, place)
    assert way is not None
    with graph.inserting_before(node):
        writer = _Writer(graph, node)
        passed = [writer.row(root)]
        for view in way:
            passed.append(writer.add(view[0], (passed[-1], *view[1])))
        made = passed[-1]
        if node.target is aten.as_strided_scatter.default:
            made = node.args[1]  # type: ignore[assignment]
            for before, (func, args) in zip(reversed(passed[:-1]), reversed(way), strict=True):
                made = writer.undone(before, made, func, args)
            made = writer.laid_out(made, root.meta["spec"])
    if made.meta["spec"].stride == node.meta["spec"].stride:  # of dimensions of size 1, too
        node.replace_all_uses_with(made)
        graph.erase_node(node)


@dataclass(frozen=True, eq=False)
class _Writer:
    """Writes ops in the place of one."""

    graph: fx.Graph
    node: fx.Node

    def add(self, func: OpOverload, args: tuple[Any, ...], **options: Any) -> fx.Node:
        made = self.graph.call_function(func, args, options)
        looks = [_empty(a.meta["spec"]) if isinstance(a, fx.Node) else a for a in args]
        like: Spec = self.node.meta["spec"]
        spec = Spec.of(func(*looks, **options))
        made.meta = {**self.node.meta, "spec": replace(spec, device=like.device)}
        return made

    def row(self, root: fx.Node) -> fx.Node:
        """All elements of a dense value, in the order in which they lie in memory."""
        spec: Spec = root.meta["spec"]
        order = _order(spec)
        if order != sorted(order):
            root = self.add(aten.permute.default, (root, order))
        return root if len(spec.shape) == 1 else self.add(aten.view.default, (root, [spec.num_elements]))

    def laid_out(self, row: fx.Node, spec: Spec) -> fx.Node:
        """And back."""
        order = _order(spec)
        if len(spec.shape) != 1:
            row = self.add(aten.view.default, (row, [spec.shape[d] for d in order]))
        back = [order.index(d) for d in range(len(order))]
        return row if back == sorted(back) else self.add(aten.permute.default, (row, back))

    def undone(self, before: fx.Node, new: fx.Node, func: OpOverload, args: tuple[Any, ...]) -> fx.Node:
        """The value of which a view has new contents."""
        if func is aten.slice.Tensor:
            return self.add(aten.slice_scatter.default, (before, new, *args))
        if func is aten.permute.default:
            return self.add(aten.permute.default, (new, [args[0].index(d) for d in range(len(args[0]))]))
        if not new.meta["spec"].is_contiguous:
            new = self.add(aten.clone.default, (new,), memory_format=torch.contiguous_format)
        return self.add(aten.view.default, (new, list(before.meta["spec"].shape)))


def _order(spec: Spec) -> list[int]:
    """The dimensions of a dense value, the one with the largest stride first."""
    return sorted(range(len(spec.shape)), key=lambda d: -spec.stride[d])


def _empty(spec: Spec) -> torch.Tensor:
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device="meta")
