"""Functionalize: a pass over a trace that leaves no write and no hidden alias.

A storage that nothing writes keeps its views as they are. For one that is written, each write makes a new value of
the whole storage, and later reads of any alias are re-made from the newest value.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from foregrad.core.errors import CaptureError
from foregrad.core.size import replaced, sizes_in
from foregrad.core.spec import NumberSpec, Spec
from foregrad.functionalize.graph_inputs import GraphInputs
from foregrad.functionalize.invert_views import INVERSES, PARTS, out_of_place
from foregrad.functionalize.overlap import covered, depends_on_order, filled_once
from foregrad.functionalize.pure_variants import Pure, made_by, variant_for
from foregrad.functionalize.redraw import Redraw, is_kept, state_before
from foregrad.functionalize.storage_values import Contents
from foregrad.record.freeze import PartialTrace
from foregrad.record.ghosts.table import GhostTable
from foregrad.record.intercept import SET_DATA
from foregrad.record.ops import Alias, Geometry, ItemOf, Op, Origin, Storage, aliases_in, short_name
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import Trace

aten = torch.ops.aten

_FEW_PARTS = 8


class Functionalizer:
    """Emits a pure graph, op by op. Feed it inputs, then ops in order; then read any alias."""

    def __init__(self, trace: Trace | PartialTrace, table: GhostTable) -> None:
        self.graph = fx.Graph()
        self.inputs = GraphInputs(self.graph, trace.generators)
        self.trace, self.ops = trace, trace.ops
        self._table = table
        self._written = {alias.storage for op in self.ops for alias in op.writes}
        self._written |= {
            op.renames.storage for op in self.ops if op.renames is not None and op.renames.storage in trace.grown
        }
        self._contents: dict[Storage, Contents] = {}
        self._values: dict[Alias, tuple[fx.Node, int]] = {}
        self._given: dict[tuple[Storage, Geometry, int], fx.Node] = {}
        self._pieces: dict[tuple[int, int], fx.Node] = {}
        self._draws: dict[int, fx.Node] = {}
        self._states: dict[fx.Node, fx.Node] = {}  # of the generator, right before a random op
        self._items: dict[tuple[fx.Node, int], fx.Node] = {}
        self._op: Op | None = None
        self._num_emitted = 0
        self.phase = 0
        self.offset_sensitive: set[Storage] = set()
        self.reads: list[tuple[fx.Node, int]] = []  # what backward reads, and through which object

    def result_nodes(self, op: Op) -> list[fx.Node]:
        """The results of an op that writes to nothing, as it gave them."""
        node = self._draws[op.index]
        aliases = aliases_in(op.outputs)
        return [node] if isinstance(op.outputs, Alias) else [self._item(node, place) for place in range(len(aliases))]

    # -- inputs ---------------------------------------------------------------------------------------

    def add_input(self, node: fx.Node, alias: Alias) -> None:
        """Let a placeholder (or constant) be the value of an alias."""
        node.meta.setdefault("spec", alias.spec)
        if alias.storage in self._written and alias.storage not in self._contents:
            self._start(alias, node)
        elif alias.storage not in self._written:
            same = self._given.setdefault((alias.storage, alias.geometry, alias.bits), node)  # what autograd unpacks
            self._values[alias] = (same, 0)  # is known by its memory alone, which may be that of another input too
            self._contents.setdefault(alias.storage, Contents(same, alias))

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
        is_whole = alias.offset == 0 and alias.spec.is_contiguous and alias.spec.num_bytes == storage.num_bytes
        is_simple = alias.offset == 0 and alias.spec.is_dense and storage.kind != "input"
        if (is_whole or is_simple) and alias is self.trace.roots[storage]:
            self._contents[storage] = Contents(node, alias)
            return
        num = storage.num_bytes // alias.dtype.itemsize
        flat = self.emit(
            aten.as_strided.default, (node, [num], [1], 0), Spec((num,), (1,), alias.dtype, storage.device)
        )
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
        node = self._draw(op, op.func, self._resolve(op.args), self._resolve(op.kwargs))
        self._draws[op.index] = node
        if isinstance(op.outputs, Alias):
            self._define(op.outputs, node)
            return
        if isinstance(op.outputs, list):
            self._define_items(node, op.outputs)

    def _draw(self, op: Op, func: Any, args: Any, kwargs: Any) -> fx.Node:
        """Call an op. A random one that a checkpoint repeats draws the numbers of the first time."""
        first = self._draws.get(op.redraws) if op.redraws is not None else None
        if first is None:
            return self._call(func, args, kwargs)
        if is_kept(op):
            return first
        if first not in self._states:
            self._states[first] = state_before(first)
        return self._call(Redraw(func), (self._states[first], *args), kwargs)

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
        if before is None or after.storage not in self.trace.grown or after.storage is not before.storage:
            return
        contents = self._contents[after.storage]
        num, row = after.offset + after.spec.extent, contents.node
        if after.dtype != contents.root.dtype or not contents.is_row:
            raise self._refuse(op, "a tensor that shares its memory with others grows")
        if not contents.flat:
            row = self.emit(
                aten.view.default,
                (row, [-1]),
                Spec((contents.root.spec.extent,), (1,), after.dtype, after.storage.device),
            )
        missing = num - row.meta["spec"].extent
        if missing > 0:
            row = self.emit(
                aten.constant_pad_nd.default, (row, [0, missing]), Spec((num,), (1,), after.dtype, after.storage.device)
            )
        self._contents[after.storage] = Contents(row, after, flat=True, generation=contents.generation + 1)

    def _write_op(self, op: Op) -> None:
        op = filled_once(op, self._table)
        if (reason := depends_on_order(op)) is not None:
            raise self._refuse(op, reason)
        variant = variant_for(op)
        args, kwargs = variant.filled(self._resolve(op.args)), self._resolve(op.kwargs)
        kwargs = {k: v for k, v in kwargs.items() if k not in variant.dropped}
        node = self._draw(op, variant.func, args, kwargs)
        self._draws[op.index] = node
        own = [a for a in aliases_in(op.outputs) if a.op == op.index and a not in op.writes]
        for place, alias in enumerate(own[: variant.num_results]):
            self._define(alias, self._item(node, place))
        for place, alias in enumerate(op.writes):
            value = self._item(node, variant.num_results + place) if variant.returns_list else node
            self._take(alias, value, op, variant.func)

    def _take(self, alias: Alias, value: fx.Node, op: Op, func: Any) -> None:
        """Let an alias have a new value, brought to the alias' own dtype and strides."""
        made = made_by(func, op, alias, self._table, self.trace.device) if not isinstance(func, Pure) else alias.spec
        value.meta["spec"] = made
        if (made.shape, made.stride, made.dtype) != (alias.size, alias.stride, alias.dtype):
            value = self.emit(aten.copy.default, (self.read(alias), value), alias.spec)
        self.write(alias, value)

    # -- values ---------------------------------------------------------------------------------------

    def read(self, alias: Alias) -> fx.Node:
        """The node with the present value of an alias."""
        contents, known = self._contents.get(alias.storage), self._values.get(alias)
        generation = contents.generation if contents else 0
        if known is not None and known[1] == generation:
            return known[0]
        node = self._make(alias, contents)
        self._values[alias] = (node, generation)
        return node

    def read_in_place(self, alias: Alias) -> fx.Node:
        """The present value of an alias where it lies in its memory: others may look at the rest."""
        contents = self._contents.get(alias.storage)
        is_part = contents is not None and contents.generation > 0 and contents.has_part(alias)
        return self._strided(alias, contents) if contents is not None and is_part else self.read(alias)

    def _make(self, alias: Alias, contents: Contents | None) -> fx.Node:
        if contents is None:
            raise AssertionError(f"{alias!r} has no contents")
        if contents.flat:
            return self._strided(alias, contents)
        if alias is contents.root or (alias.geometry, alias.bits) == (contents.root.geometry, contents.root.bits):
            return contents.node
        parent = alias.parent
        if parent is None or alias.op is None or alias.op >= len(self.ops):
            return self._strided(alias, contents)
        op = self.ops[alias.op]
        if op.func is aten.as_strided.default and alias.storage in self._written:
            return self._strided(alias, contents)  # it counts from the start of the memory, not of its parent's value
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
            op, parent = None if alias.op is None else self.ops[alias.op], alias.parent
            if parent is not None and op is not None and op.is_view and op.func is not aten.as_strided.default:
                return self._view(op, alias, self.read(parent))
            node = self._row(contents, alias)
        elif alias.bits != contents.root.bits:
            raise self._refuse(self._op, f"one memory is seen as {alias.spec} and as {contents.root.spec}")
        if contents.root.storage.kind == "input":
            self.offset_sensitive.add(contents.root.storage)
        args = (node, list(alias.size), list(alias.stride), alias.offset)
        return self.emit(aten.as_strided.default, args, alias.spec)

    def _row(self, contents: Contents, alias: Alias) -> fx.Node:
        """The whole of a storage as one row of an alias' dtype."""
        node, num_bytes = contents.node, contents.node.meta["spec"].num_bytes
        if not contents.is_row or alias.bits or contents.root.bits or num_bytes % alias.dtype.itemsize:
            raise self._refuse(self._op, f"one memory is seen as {alias.spec} and as {contents.root.spec}")
        if not contents.flat:
            num = num_bytes // contents.root.dtype.itemsize
            node = self.emit(aten.view.default, (node, [num]), Spec((num,), (1,), contents.root.dtype))
        row = Spec((num_bytes // alias.dtype.itemsize,), (1,), alias.dtype)
        return self.emit(aten.view.dtype, (node, alias.dtype), row)

    def current(self) -> dict[fx.Node, Alias]:
        """For each node, an alias whose present value it is; for one that is a whole memory in a row, that row."""
        rows = {contents.node: contents.row for contents in self._contents.values() if contents.flat}
        return rows | {
            node: alias
            for alias, (node, generation) in self._values.items()
            if alias.storage in self._contents and self._contents[alias.storage].generation == generation
        }

    def write(self, alias: Alias, value: fx.Node) -> None:
        """Let an alias, and through it the whole storage, have a new value."""
        contents = self._contents[alias.storage]
        if contents.flat and alias.storage.kind == "input" and not covered(alias, self._shown(alias.storage)):
            raise self._refuse(self._op, "an op writes to memory beside the tensor that the function was given")
        untouched = [(part, self.read(part)) for part in self._beside(alias)]
        contents.node = self._whole(alias, value, contents)
        contents.generation += 1
        self._values.update({part: (node, contents.generation) for part, node in [(alias, value), *untouched]})

    def _beside(self, alias: Alias) -> list[Alias]:
        """The other parts of what an alias is a part of: a write to one leaves them as they are."""
        op = self.ops[alias.op] if alias.op is not None and alias.op < len(self.ops) else None
        if op is None or op.func not in PARTS or len(op.outputs) > _FEW_PARTS:
            return []
        return [part for part in op.outputs if part is not alias]

    def _shown(self, storage: Storage) -> list[Alias]:
        """What inputs show of their memory, as they come and resized: only that is written at the end."""
        aliases = self.trace.shown[storage]
        objects = {alias.object for alias in aliases if alias.op is None}
        return [a for a in aliases if a.op is None or (a.object in objects and self._is_resized(a.op))]

    def _is_resized(self, index: int) -> bool:
        return index < len(self.ops) and self.ops[index].func in (aten.resize_.default, aten.resize_as_.default)

    def _whole(self, alias: Alias, value: fx.Node, contents: Contents) -> fx.Node:
        root = contents.root
        if not contents.flat:
            if alias is root or (alias.geometry, alias.bits) == (root.geometry, root.bits):
                return value
            chained = self._invert(alias, value, contents)
            if chained is not None:
                return chained
        if alias.bits != root.bits:
            raise self._refuse(self._op, f"one memory is written as {alias.spec} and seen as {root.spec}")
        if alias.dtype != root.dtype:
            row = self._row(contents, alias)
            place = (list(alias.size), list(alias.stride), alias.offset)
            row = self.emit(aten.as_strided_scatter.default, (row, value, *place), row.meta["spec"])
            spec = contents.node.meta["spec"]
            back = self.emit(aten.view.dtype, (row, root.dtype), Spec((spec.extent,), (1,), root.dtype))
            return self.emit(aten.view.default, (back, list(spec.shape)), spec)
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
            value = inverse(self.emit, parent, value, op.args, view.parent, view)
            if value is None:
                return None
        return value

    # -- emitting -------------------------------------------------------------------------------------

    def emit(self, func: Any, args: Any, like: Any, kwargs: Any = None, origin: Op | None = None) -> fx.Node:
        node = self._call(func, args, kwargs or {}, origin)
        node.meta["spec"] = like.spec if isinstance(like, Alias) else like
        return node

    def _call(self, func: Any, args: Any, kwargs: Any, origin: Op | None = None) -> fx.Node:
        if self.trace.has_sizes and sizes_in((args, kwargs)):
            args, kwargs = replaced(args, self.inputs.number), replaced(kwargs, self.inputs.number)
        node = self.graph.create_node("call_function", func, args, kwargs, name=short_name(func))
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
        if isinstance(value, Expression):
            return self.inputs.number(value)
        if isinstance(value, ItemOf):
            return self.emit(aten._local_scalar_dense.default, (self.read(value.alias),), NumberSpec.of(1.0))
        if isinstance(value, torch.Generator):
            return self.inputs.generator(value)
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
