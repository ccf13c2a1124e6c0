"""Functionalize: a pass over the recording that leaves no write and no hidden alias.

A storage that nothing writes keeps its views as they are. For one that is written, each write makes a new value of
the whole storage, and later reads of any alias are re-made from the newest value.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from foregrad.errors import CaptureError
from foregrad.functionalize.overlap import covered, overlaps_itself, share_elements
from foregrad.functionalize.variants import Pure, has_in_place, is_pointwise, variant_of, writes_out
from foregrad.functionalize.views import INVERSES, out_of_place
from foregrad.record.ghosts import GhostTable, Made
from foregrad.record.intercept import SET_DATA
from foregrad.record.trace import Alias, Op, Origin, Storage
from foregrad.words.spec import Spec

aten = torch.ops.aten


@dataclass(slots=True, eq=False)
class Contents:
    """The newest value of a storage, seen through `root`; `flat` if it is the whole storage as one row."""

    node: fx.Node
    root: Alias
    flat: bool = False
    generation: int = 0


class Functionalizer:
    """Emits a pure graph, op by op. Feed it inputs, then ops in order; then read any alias."""

    def __init__(self, ops: Iterable[Op], table: GhostTable) -> None:
        self.graph = fx.Graph()
        self.ops = tuple(ops)
        self._table = table
        self._written = {alias.storage for op in self.ops for alias in op.writes}
        self._written |= {
            op.renames.storage for op in self.ops if op.renames is not None and op.renames.storage.is_grown
        }
        self._contents: dict[Storage, Contents] = {}
        self._values: dict[Alias, tuple[fx.Node, int]] = {}
        self._pieces: dict[tuple[int, int], fx.Node] = {}
        self._draws: dict[int, fx.Node] = {}
        self._items: dict[tuple[fx.Node, int], fx.Node] = {}
        self._op: Op | None = None
        self._num_emitted = 0
        self.phase = 0
        self.offset_sensitive: set[Storage] = set()
        self.reads: list[tuple[fx.Node, int]] = []  # what backward reads, and through which object

    # -- inputs ---------------------------------------------------------------------------------------

    def add_input(self, node: fx.Node, alias: Alias) -> None:
        """Let a placeholder (or constant) be the value of an alias."""
        node.meta.setdefault("spec", alias.spec)
        if alias.storage in self._written and alias.storage not in self._contents:
            self._start(alias, node)
        elif alias.storage not in self._written:
            self._values[alias] = (node, 0)
            self._contents.setdefault(alias.storage, Contents(node, alias))

    def replace_contents(self, node: fx.Node, alias: Alias) -> None:
        """From here on a storage holds what this placeholder brings: an input as backward finds it."""
        generation = self._contents[alias.storage].generation + 1 if alias.storage in self._contents else 0
        self._contents.pop(alias.storage, None)
        node.meta.setdefault("spec", alias.spec)
        self._start(alias, node)
        self._contents[alias.storage].generation = generation
        for known in [a for a in self._values if a.storage is alias.storage]:
            del self._values[known]

    def _start(self, alias: Alias, node: fx.Node) -> None:
        storage = alias.storage
        is_whole = alias.offset == 0 and alias.spec.is_contiguous and alias.spec.num_bytes == storage.handle.nbytes()
        is_simple = alias.offset == 0 and alias.spec.is_dense and storage.kind != "input"
        if (is_whole or is_simple) and alias is storage.root:
            self._contents[storage] = Contents(node, alias)
            return
        num = storage.handle.nbytes() // alias.dtype.itemsize
        flat = self.emit(aten.as_strided.default, (node, [num], [1], 0), Spec((num,), (1,), alias.dtype))
        self.offset_sensitive.add(storage)
        self._contents[storage] = Contents(flat, alias, flat=True)

    # -- ops ------------------------------------------------------------------------------------------

    def add_ops(self, ops: Iterable[Op]) -> None:
        for op in ops:
            self._op, self._num_emitted, self.phase = op, 0, op.phase
            if op.is_view:
                continue  # emitted where it is read
            if op.renames is not None:
                self._rename(op)
            elif op.writes:
                self._write_op(op)
            else:
                self._compute(op)
        self._op = None

    def _compute(self, op: Op) -> None:
        node = self._drawn(op) or self._call(op.func, self._resolve(op.args), self._resolve(op.kwargs))
        self._draws[op.index] = node
        if isinstance(op.outputs, Alias):
            self._define(op.outputs, node)
            return
        if isinstance(op.outputs, list):
            self._define_items(node, op.outputs)

    def _drawn(self, op: Op) -> fx.Node | None:
        """A random op that a checkpoint repeats gives the numbers of the first time."""
        return self._draws.get(op.redraws) if op.redraws is not None else None

    def _define_items(self, node: fx.Node, outputs: list[Any]) -> None:
        for place, output in enumerate(outputs):
            if isinstance(output, Alias):
                self._define(output, self._item(node, place))
            elif isinstance(output, list):
                self._define_items(self._item(node, place), output)

    def _define(self, alias: Alias, node: fx.Node) -> None:
        node.meta["spec"] = alias.spec
        if alias.storage in self._written:
            self._start(alias, node)
        else:
            self._contents.setdefault(alias.storage, Contents(node, alias))
            self._values[alias] = (node, 0)

    def _rename(self, op: Op) -> None:
        """A change of geometry only changes how later reads look; growing memory makes a larger value."""
        before, after = op.renames, op.outputs
        if before is None or not after.storage.is_grown or after.storage is not before.storage:
            return
        contents = self._contents[after.storage]
        if contents.flat or not after.spec.is_dense or after.offset:
            raise self._refuse(op, "a tensor that shares its memory with others grows")
        flat = self.emit(
            aten.view.default, (contents.node, [-1]), Spec((contents.root.spec.extent,), (1,), after.dtype)
        )
        missing = after.spec.extent - contents.root.spec.extent
        if missing > 0:
            flat = self.emit(
                aten.constant_pad_nd.default, (flat, [0, missing]), Spec((after.spec.extent,), (1,), after.dtype)
            )
        self._replace(after, self.emit(aten.view.default, (flat, list(after.size)), after.spec))

    def _write_op(self, op: Op) -> None:
        self._check_overlap(op)
        variant = variant_of(op.func)
        args, kwargs = self._resolve(op.args), self._resolve(op.kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k not in variant.dropped}
        node = self._drawn(op) or self._call(variant.func, args, kwargs)
        self._draws[op.index] = node
        own = [a for a in _flat(op.outputs) if a.op == op.index and a not in op.writes]
        for place, alias in enumerate(own[: variant.num_results]):
            self._define(alias, self._item(node, place))
        for place, alias in enumerate(op.writes):
            value = self._item(node, variant.num_results + place) if variant.returns_list else node
            self._take(alias, value, op, variant.func)

    def _take(self, alias: Alias, value: fx.Node, op: Op, func: Any) -> None:
        """Let an alias have a new value, brought to the alias' own dtype and strides."""
        made = self._made_by(func, op, alias) if not isinstance(func, Pure) else alias.spec
        value.meta["spec"] = made
        if (made.shape, made.stride, made.dtype) != (alias.size, alias.stride, alias.dtype):
            value = self.emit(aten.copy.default, (self.read(alias), value), alias.spec)
        self.write(alias, value)

    def _made_by(self, func: Any, op: Op, alias: Alias) -> Spec:
        """What the pure form of a writing op returns for this argument."""
        dropped = variant_of(op.func).dropped
        key, ghosts = ("pure", func, *_key(op.args), *_key(op.kwargs)), _ghosts(op.args)
        kwargs = {k: _ghosts(v) for k, v in op.kwargs.items() if k not in dropped}
        result = self._table.outcome(key, func, ghosts, kwargs).result
        variant = variant_of(op.func)
        made = result[variant.num_results + op.writes.index(alias)] if variant.returns_list else result
        return Spec(made.size, made.stride, made.dtype) if isinstance(made, Made) else alias.spec

    def _check_overlap(self, op: Op) -> None:
        """Refuse writes whose outcome depends on the order in which elements are visited."""
        arguments = _flat(op.args) + _flat(list(op.kwargs.values()))
        reads = _flat(op.args)[1:] if has_in_place(op.func) else _flat(op.args)
        for target in op.writes:
            if overlaps_itself(target):
                raise self._refuse(op, "an op writes to a tensor some of whose elements are one place in memory")
            beside = [a for a in reads if a.storage is target.storage]
            if writes_out(op.func) and not is_pointwise(op.func) and any(share_elements(a, target) for a in beside):
                raise self._refuse(op, "an op writes its result over its own argument")
            others = [a for a in arguments if a.storage is target.storage and a.geometry != target.geometry]
            if any(share_elements(target, other) for other in others):
                raise self._refuse(op, "an op reads and writes overlapping memory, in an order that eager leaves open")

    # -- values ---------------------------------------------------------------------------------------

    def read(self, alias: Alias) -> fx.Node:
        """The node with the present value of an alias."""
        contents = self._contents.get(alias.storage)
        generation = contents.generation if contents else 0
        known = self._values.get(alias)
        if known is not None and known[1] == generation:
            return known[0]
        node = self._make(alias, contents)
        self._values[alias] = (node, generation)
        return node

    def _make(self, alias: Alias, contents: Contents | None) -> fx.Node:
        if contents is None:
            raise AssertionError(f"{alias!r} has no contents")
        if contents.flat:
            return self._strided(alias, contents)
        if alias is contents.root or (alias.geometry, alias.bits) == (contents.root.geometry, contents.root.bits):
            return contents.node
        if alias.parent is None or alias.op is None or alias.op >= len(self.ops):
            return self._strided(alias, contents)
        op = self.ops[alias.op]
        parent = alias.parent
        if op.is_view:
            return self._view(op, alias, self.read(parent))
        if op.func is SET_DATA or (parent.geometry == alias.geometry):
            return self.read(parent)
        func = out_of_place(op.func)
        if func is None:
            return self._strided(alias, contents)
        return self.emit(func, (self.read(parent), *op.args[1:]), alias.spec, op.kwargs, origin=op)

    def _view(self, op: Op, alias: Alias, parent: fx.Node) -> fx.Node:
        args = tuple(parent if a is alias.parent else a for a in op.args)
        if not isinstance(op.outputs, list):
            return self.emit(op.func, args, alias.spec, op.kwargs, origin=op)
        key = (op.index, id(parent))
        whole = self._pieces.get(key)
        if whole is None:
            whole = self._pieces[key] = self.emit(op.func, args, None, op.kwargs, origin=op)
        return self.emit(operator.getitem, (whole, alias.position), alias.spec, origin=op)

    def _strided(self, alias: Alias, contents: Contents) -> fx.Node:
        node = contents.node
        if alias.dtype != contents.root.dtype:
            if alias.parent is not None and alias.op is not None and self.ops[alias.op].is_view:
                return self._view(self.ops[alias.op], alias, self.read(alias.parent))
            raise self._refuse(self._op, f"one memory is seen as {alias.spec} and as {contents.root.spec}")
        if contents.root.storage.kind == "input":
            self.offset_sensitive.add(contents.root.storage)
        args = (node, list(alias.size), list(alias.stride), alias.offset)
        return self.emit(aten.as_strided.default, args, alias.spec)

    def current(self) -> dict[fx.Node, Alias]:
        """For each node, an alias whose present value it is."""
        return {
            node: alias
            for alias, (node, generation) in self._values.items()
            if alias.storage in self._contents and self._contents[alias.storage].generation == generation
        }

    def write(self, alias: Alias, value: fx.Node) -> None:
        """Let an alias, and through it the whole storage, have a new value."""
        contents = self._contents[alias.storage]
        given = [a for a in alias.storage.aliases if a.op is None] if contents.flat else []
        if contents.flat and alias.storage.kind == "input" and not covered(alias, given):
            raise self._refuse(self._op, "an op writes to memory beside the tensor that the function was given")
        new = self._whole(alias, value, contents)
        contents.node = new
        contents.generation += 1
        self._values[alias] = (value, contents.generation)

    def _replace(self, alias: Alias, value: fx.Node) -> None:
        """An alias becomes the root of its storage, which was resized for it."""
        generation = self._contents[alias.storage].generation + 1 if alias.storage in self._contents else 0
        self._contents[alias.storage] = Contents(value, alias, generation=generation)

    def _whole(self, alias: Alias, value: fx.Node, contents: Contents) -> fx.Node:
        root = contents.root
        if not contents.flat:
            if alias is root or (alias.geometry, alias.bits) == (root.geometry, root.bits):
                return value
            chained = self._invert(alias, value, contents)
            if chained is not None:
                return chained
        if alias.dtype != root.dtype or alias.bits != root.bits:
            raise self._refuse(self._op, f"one memory is written as {alias.spec} and seen as {root.spec}")
        args = (contents.node, value, list(alias.size), list(alias.stride), alias.offset)
        return self.emit(aten.as_strided_scatter.default, args, contents.node.meta["spec"])

    def _invert(self, alias: Alias, value: fx.Node, contents: Contents) -> fx.Node | None:
        """Undo the views from an alias up to the root; None if one of them cannot be undone."""
        chain: list[tuple[Alias, Op, Any]] = []
        at = alias
        while at is not contents.root:
            if at.parent is None or at.op is None or at.op >= len(self.ops) or at.parent.storage is not alias.storage:
                return None
            op = self.ops[at.op]
            func = aten.alias.default if op.func is SET_DATA else (op.func if op.is_view else out_of_place(op.func))
            inverse = INVERSES.get(func) if func is not None else None
            if inverse is None:
                return None
            chain.append((at, op, inverse))
            at = at.parent
        for view, op, inverse in chain:
            assert view.parent is not None
            parent = self.read(view.parent) if inverse not in _NEEDS_NO_PARENT else None
            new = inverse(self.emit, parent, value, op.args, view.parent, view)
            if new is None:
                return None
            value = new
        return value

    # -- emitting -------------------------------------------------------------------------------------

    def emit(self, func: Any, args: Any, like: Any, kwargs: Any = None, origin: Op | None = None) -> fx.Node:
        node = self._call(func, args, kwargs or {}, origin)
        node.meta["spec"] = like.spec if isinstance(like, Alias) else like
        return node

    def _call(self, func: Any, args: Any, kwargs: Any, origin: Op | None = None) -> fx.Node:
        node = self.graph.create_node("call_function", func, args, kwargs, name=_short_name(func))
        op = origin or self._op
        node.meta["phase"] = self.phase
        node.meta["grad_enabled"] = op.grad_enabled if op is not None else True
        node.meta["origin"] = op.origin if op is not None else Origin(None, 0, "")
        node.meta["key"] = (self._op.index if self._op is not None else -1 - self.phase, self._num_emitted)
        self._num_emitted += 1
        return node

    def _item(self, node: fx.Node, place: int) -> fx.Node:
        key = (node, place)
        if key not in self._items:
            self._items[key] = self.emit(operator.getitem, (node, place), None)
        return self._items[key]

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, Alias):
            node = self.read(value)
            if self.phase:
                self.reads.append((node, value.object))
            return node
        if isinstance(value, tuple):
            return tuple([self._resolve(v) for v in value])
        if isinstance(value, list):
            return [self._resolve(v) for v in value]
        if isinstance(value, dict):
            return {k: self._resolve(v) for k, v in value.items()}
        return value

    def _refuse(self, op: Op | None, what: str) -> CaptureError:
        where = f"\n  at {op.origin}" if op is not None else ""
        return CaptureError(f"{what}.{where}\nMake a copy first, with clone().")


_NEEDS_NO_PARENT = {
    INVERSES[f] for f in (aten.detach.default, aten.view.default, aten.t.default, aten.view.dtype, aten._conj.default)
}


def _short_name(func: Any) -> str:
    if func is operator.getitem:
        return "item"
    return str(func._schema.name.split("::")[1]).strip("_") if hasattr(func, "_schema") else str(func.__name__)


def _flat(value: Any) -> list[Alias]:
    if isinstance(value, Alias):
        return [value]
    if isinstance(value, (list, tuple)):
        return [a for v in value for a in _flat(v)]
    return []


def _key(value: Any) -> list[Any]:
    if isinstance(value, Alias):
        return [value.meta]
    if isinstance(value, (list, tuple)):
        return [len(value), *(k for v in value for k in _key(v))]
    if isinstance(value, dict):
        return [k for name, v in value.items() for k in (name, *_key(v))]
    if isinstance(value, torch.Generator):
        return [object()]
    return [type(value), value]


def _ghosts(value: Any) -> Any:
    if isinstance(value, Alias):
        return torch.empty_strided(value.size, value.stride, dtype=value.dtype)
    if isinstance(value, (list, tuple)):
        return [_ghosts(v) for v in value]
    return value
