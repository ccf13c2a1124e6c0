"""Plan the effects: which view and metadata ops must be replayed after the call, and which inputs are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.functionalize.effect_order import START, Placed, Position, Turn
from foregrad.functionalize.effects import (
    AsFunctionView,
    Attach,
    Bump,
    Effects,
    GoOn,
    RedoView,
    Reshape,
    Step,
    Write,
    refs,
)
from foregrad.functionalize.overlap import once, overlaps_itself, surely_covered
from foregrad.functionalize.requires_grad import plan_flags
from foregrad.functionalize.version_bumps import Versions
from foregrad.functionalize.version_counters import Counters
from foregrad.record.ghosts.table import GhostTable
from foregrad.record.intercept import SET_DATA
from foregrad.record.ops import Alias, Op, Storage
from foregrad.record.trace import Ref, Trace, TracedBase

aten = torch.ops.aten

#: Views that look at the memory of another tensor in another geometry, and at nothing else.
_PLAIN_VIEWS = {
    aten.t.default,
    aten.transpose.int,
    aten.permute.default,
    aten.view.default,
    aten.expand.default,
    aten.squeeze.dim,
    aten.unsqueeze.default,
    aten.select.int,
    aten.slice.Tensor,
}

#: Changes of metadata that leave the version counter alone.
_BUMPS_NOTHING = {SET_DATA, aten.detach_.default}

#: Changes of metadata after which a tensor may show less of its memory.
_CHANGES_EXTENT = {
    aten.resize_.default,
    aten.resize_as_.default,
    aten.as_strided_.default,
}


def plan_effects(trace: Trace, table: GhostTable) -> Effects:
    return _Planner(trace, table).plan()


@dataclass
class _Planner:
    trace: Trace
    table: GhostTable
    steps: list[Placed] = field(default_factory=list)
    seen: set[int] = field(default_factory=set)

    def plan(self) -> Effects:
        trace, self.renames = self.trace, self.trace.renames
        ops = trace.ops[: trace.num_forward]
        self.counters = Counters(trace)
        self.inputs = {lifted.alias.object: lifted for lifted in trace.inputs}
        self.bases = {base.alias.object: base for base in trace.bases}
        self.writes: dict[Storage, list[tuple[int, int]]] = {}  # op and object, in order
        for op in ops:
            for alias in op.writes:
                self.writes.setdefault(alias.storage, []).append((op.index, alias.object))
        self.returned = self._returned()
        for number in trace.escaping:
            self._need(number)
        for base in trace.bases:
            if base.kind != "fresh":
                self._write(base)
        self._count_changes(ops)
        flags = plan_flags(trace, self.seen | self.returned.keys(), self._made_at, self.steps)
        self.steps += flags.steps
        self._go_on()
        versions = Versions(self.counters, self.inputs, self.bases, self.writes)
        self.steps += versions.late_writes(self.steps)
        self.steps += versions.first_writes(self.steps)
        early = self._take_early()
        ordered = tuple(step for _, step in sorted(self.steps, key=lambda s: s[0]))
        bumps = versions.bumps(ordered)
        return Effects(
            prologue=(*flags.before, *early),
            steps=ordered,
            inputs=self.inputs,
            returned=self.returned,
            version_shifts=self._shifts(bumps),
            bumps=bumps,
            late_versions=self._late_versions(ordered),
            early=tuple(step.target for step in early),
            counters={number: self.counters.of(number) for number in (*self.inputs, *self.bases)},
        )

    def _go_on(self) -> None:
        """Plan what is left of backwards inside the function that have reached inputs with a history."""
        writes = [index for storage, found in self.writes.items() for index, _ in found if storage.kind == "input"]
        for run in self.trace.runs:
            is_first = all(index >= run.place for index in writes)
            step = GoOn(run.inputs[0], run.inputs, run.gradients, run.retain_graph, run.create_graph, is_first)
            self.steps.append((Position(run.place, Turn.BACKWARD), step))

    def _returned(self) -> dict[int, TracedBase]:
        """One tensor for each new storage; its other bases look at the memory of the first."""
        first: dict[Storage, TracedBase] = {}
        fresh = [base for base in self.trace.bases if base.kind == "fresh" and not self._is_look(base)]
        for base in fresh:
            if self.counters.of(base.alias.object) in self.inputs:
                writes = self.writes.get(base.alias.storage)
                if not writes:
                    replaced = self.renames[base.alias.object][-1]
                    raise _refusal("the .data of a view of an input is replaced that has a history", replaced)
                write = self.trace.ops[writes[-1][0]]
                raise _refusal("an op gives a history to the detach() of an input whose .data was replaced", write)
            first.setdefault(base.alias.storage, base)
            if base.is_root:
                first[base.alias.storage] = base
        returned = {base.alias.object: base for base in fresh}
        self.first = first
        # By version counter: the first of those that share one, which the program may return in place of its owner.
        self.holders = {self.counters.of(number): number for number in reversed(returned)}
        self.holders |= {self.counters.of(b.alias.object): b.alias.object for b in first.values()}
        return returned

    def _is_look(self, base: TracedBase) -> bool:
        """Whether a tensor in new memory is the `detach()` of an input that has taken over this memory."""
        return not base.needs_tangent and self.counters.of(base.alias.object) in self.inputs

    def _need(self, number: int) -> None:
        """Plan the ops that bring an object into being, and those that change its geometry."""
        if number in self.seen:
            return
        self.seen.add(number)
        if number not in self.inputs:
            base = self.returned.get(number)
            if base is not None:
                if base.is_function_view:
                    made = self.counters.first_alias(number).op  # what moved its version counter before is done before
                    self.steps.append((START if made is None else Position(made), AsFunctionView(number)))
                return
            taken = self._taken_over(number)
            if taken is not None:
                self._need(taken.args[1].object)
                step = Reshape(number, taken.args[1].object, taken.outputs.geometry, "data")
                self.steps.append((Position(taken.index), step))
                later = [op for op in self.renames[number] if op.index > taken.index]
                for op in later:
                    self._replay(op, number, is_in_place=True)
                return
            self._create(number)
        for op in self.renames.get(number, ()):
            for alias in op.args[1:]:
                if isinstance(alias, Alias):
                    self._need(alias.object)
                    self._check_taken(op, alias)
            self._replay(op, number, is_in_place=True)

    def _check_taken(self, op: Op, source: Alias) -> None:
        """Refuse later changes of a new tensor's geometry: it is returned in its last one, which this op would take."""
        later = [change for change in self.renames.get(source.object, ()) if change.index > op.index]
        if later and source.object in self.returned:
            raise _refusal("a tensor changes its geometry after another has taken over its memory", later[0])

    def _taken_over(self, number: int) -> Op | None:
        """The op by which a new tensor, of no interest before, took over another's memory."""
        if self._has_source(number):
            return None
        changes = [
            op for op in self.renames.get(number, ()) if isinstance(op.args[1] if len(op.args) > 1 else None, Alias)
        ]
        return changes[-1] if changes else None

    def _has_source(self, number: int) -> bool:
        """Whether an object came into being as a look at another one that is there after the call."""
        while (parent := self.counters.first_alias(number).parent) is not None:
            number = parent.object
            if number in self.returned or number in self.inputs:
                return True
        return False

    def _create(self, number: int) -> None:
        alias = self.counters.first_alias(number)
        if alias.op is None or alias.parent is None:
            raise AssertionError("an output that is neither new nor a view")
        op = self.trace.ops[alias.op]
        base = self._below(alias)
        self._need(alias.parent.object if base is None else base.object)
        parent = alias.parent
        source = self.bases.get(parent.object)
        taken = self._taken_over(parent.object) if source is not None and source.kind == "alias" else None
        if taken is not None and taken.index > op.index:
            raise self._replaced(op)
        if source is not None and source.kind == "fresh" and source.alias is not parent:
            # The base changed its geometry later, and is returned in its last one.
            if source.alias.storage is not parent.storage:
                raise self._replaced(op)
            if (alias.dtype, alias.bits) != (parent.dtype, parent.bits):
                raise _refusal("a tensor changes its geometry after a view of another dtype was made of it", op)
            how = "part" if isinstance(op.outputs, list) else "view"
            stamp = self._stamp(op, number)
            step = Reshape(number, parent.object, alias.geometry, how, stamp, op.grad_enabled)
            self.steps.append((Position(op.index), step))
        elif op.index in self.trace.unshared:
            self.steps.append((Position(op.index), Reshape(number, parent.object, alias.geometry, "data")))
        elif base is not None:
            self.steps.append((Position(op.index), _as_one_view(number, base, alias, op.grad_enabled)))
        else:
            self._replay(op, number, is_in_place=False, item=alias.position if isinstance(op.outputs, list) else None)

    def _replaced(self, view: Op) -> CaptureError:
        return CaptureError(
            "the function returns a tensor whose memory it replaced, and a view of the old memory.\n"
            f"  at {view.origin}\nReturn one of them."
        )

    def _below(self, alias: Alias) -> Alias | None:
        """The new tensor at the end of a chain of views that can be made in one step, since it has no history."""
        at, length = alias, 0
        while at.object not in self.bases and at.object not in self.inputs:
            op = None if at.op is None else self.trace.ops[at.op]
            if op is None or at.parent is None or op.func not in _PLAIN_VIEWS or at.object in self.renames:
                return None
            if at is not alias and at.object in self.trace.flagged:
                return None
            at, length = at.parent, length + 1
        base = self.bases.get(at.object)
        is_plain = base is not None and base.kind == "fresh" and base.alias is at and not base.version
        return at if length > 1 and is_plain and base is not None and not base.requires_grad else None

    def _replay(self, op: Op, number: int, *, is_in_place: bool, item: int | None = None) -> None:
        args = tuple(refs(a) for a in op.args)
        kwargs = {k: refs(v) for k, v in op.kwargs.items()}
        if op.func in _CHANGES_EXTENT and op.renames is not None and op.renames.geometry == op.outputs.geometry:
            return  # resized to what it was
        stamp = None if is_in_place else self._stamp(op, number)
        step = RedoView(number, op.func, args, kwargs, op.grad_enabled, item, is_in_place, self._is_silent(op), stamp)
        self.steps.append((Position(op.index), step))

    def _stamp(self, op: Op, number: int) -> tuple[int, int] | None:
        """A view of a new tensor that was written later must look as old as it is."""
        holder = self.holders.get(self.counters.of(number))
        return (holder, op.version) if holder is not None and self.returned[holder].version else None

    def _write(self, base: TracedBase) -> None:
        """Plan the copy into an input that was written, or into another look at its memory with its own history."""
        number = base.alias.object
        first = self.counters.first_alias(number)
        if first.storage not in self.writes:
            if base.needs_tangent:
                is_input = base.kind == "input"
                when = self._last_change(number) if is_input else Position(self._made_at(number), Turn.HISTORY)
                how: Any = self._how(base) if is_input else self._own_version(base)
                self.steps.append((when, (Write if is_input else Attach)(number, base.alias, how)))
            return
        alias, place = first, self._last_write(number, first.storage)
        for op in self.renames.get(number, ()):
            if op.outputs.storage is not first.storage or _shows_less(op):
                place = min(place, op.index - 1)  # the whole is written while the object still shows it
                self._check_inside(op, alias)
                self._check_unmoved(op, base)
                break
            alias, place = op.outputs, max(place, op.index)
        if base.kind == "input":
            part = once(alias, self.table) if overlaps_itself(alias) else alias
            if overlaps_itself(part) or (part is not alias and base.needs_tangent):
                write = self.trace.ops[self.writes[first.storage][-1][0]]
                raise _refusal("the function writes to a tensor some of whose elements are one place in memory", write)
            step = Write(number, part, self._how(base), is_part=part is not alias)
            self.steps.append((Position(place, Turn.WRITE), step))
        elif base.needs_tangent:
            when = Position(max(place, self._made_at(number)), Turn.HISTORY)
            self.steps.append((when, Attach(number, alias, self._own_version(base))))

    def _check_inside(self, change: Op, alias: Alias) -> None:
        """Refuse writes, after a change of an object's geometry, to memory that the object did not show before."""
        ops = [self.trace.ops[index] for index, _ in self.writes[alias.storage] if index > change.index]
        for op in ops:
            if not all(surely_covered(target, alias) for target in op.writes if target.storage is alias.storage):
                raise _refusal("an op writes to memory beside the tensor that the function was given", op)

    def _check_unmoved(self, change: Op, base: TracedBase) -> None:
        """Refuse another geometry, in other memory or less of it, of an input that is written with a gradient, which
        would arrive in both."""
        first = change.index + (change.func is aten.as_strided_.default)  # which autograd follows
        moves = [op for op in self.renames[base.alias.object] if op.index >= first and _moves(op)]
        if moves and base.kind == "input" and base.needs_tangent:
            raise _refusal(f"{moves[0].func} on an input that is written with a gradient", moves[0])

    def _own_version(self, base: TracedBase) -> int | None:
        return base.version if self.counters.of(base.alias.object) == base.alias.object else None

    def _made_at(self, number: int) -> int:
        taken = self._taken_over(number)
        return taken.index if taken is not None else self.counters.first_alias(number).op or 0

    def _last_write(self, number: int, storage: Storage) -> int:
        """The last write that the version counter of an object has counted; else the last one."""
        writes, counter = self.writes[storage], self.counters.of(number)
        counted = [index for index, target in writes if self.counters.of(target) == counter]
        return counted[-1] if counted else writes[-1][0]

    def _last_change(self, number: int) -> Position:
        """After the last write to an input that has taken over other memory, and after that."""
        counter = self.counters.of(number)
        changes = [i for found in self.writes.values() for i, target in found if self.counters.of(target) == counter]
        if not changes:
            return Position(self.trace.num_forward)
        return Position(max([*changes, *(op.index for op in self.renames.get(number, ()))]), Turn.WRITE)

    def _how(self, base: TracedBase) -> str:
        assert base.input is not None
        if base.needs_tangent:
            return "leaf" if base.input.is_leaf and base.input.required_grad else "grad"
        if base.input.counter is not None or any(self._counts_for(other, base) for other in self.trace.bases):
            return "data"  # the other counts
        bumps = base.version - base.input.version - len(self.renames.get(base.alias.object, ()))
        return "no_grad" if bumps > 0 else "data"

    def _counts_for(self, other: TracedBase, base: TracedBase) -> bool:
        """Whether a write to another input, which autograd sees, moves the version counter of this one."""
        is_seen = other.needs_tangent and other.kind == "input" and other is not base
        return is_seen and self.counters.of(other.alias.object) == self.counters.of(base.alias.object)

    def _count_changes(self, ops: Sequence[Op]) -> None:
        """A change of the geometry of a view that nobody sees is counted by the input that it looks at."""
        for op in ops:
            if op.renames is None or op.renames.object in self.seen or self._is_silent(op):
                continue
            counter = self.counters.of(op.renames.object)
            if counter in self.inputs:
                self.steps.append((Position(op.index), Bump(counter, (counter,))))

    def _is_silent(self, op: Op) -> bool:
        return op.index in self.trace.silent or op.func in _BUMPS_NOTHING

    def _take_early(self) -> list[Step]:
        """The `.data` of an input can be made before the program runs, which may have to save it."""
        early = [
            (place, step)
            for place, step in self.steps
            if isinstance(step, Reshape) and step.how == "data" and step.source in self.inputs
            if step.target in self.bases and not {step.source, step.target} & self.renames.keys()
        ]
        self.steps = [placed for placed in self.steps if placed not in early]
        return [step for _, step in early]

    def _shifts(self, bumps: dict[int, int]) -> dict[int, int]:
        shifts: dict[int, int] = {}
        for number, lifted in self.inputs.items():
            if number in self.bases and self.counters.of(number) == number:
                shifts[number] = self.bases[number].version - lifted.version - bumps.get(number, 0)
        for number, base in self.returned.items():
            if base is self.first[base.alias.storage]:
                shifts[number] = base.version - bumps.get(self.counters.of(number), 0)
        return {number: shift for number, shift in shifts.items() if shift}

    def _late_versions(self, steps: tuple[Step, ...]) -> dict[int, int]:
        """Objects with a counter of their own that the steps make, or that they set back for a while."""
        late = {
            step.stamp[0]: self.returned[step.stamp[0]].version
            for step in steps
            if isinstance(step, (RedoView, Reshape)) and step.stamp
        }
        for number, base in self.bases.items():
            counter = self.counters.of(number)
            holder = self.returned.get(self.holders.get(counter, -1))
            is_set = counter in self.inputs or (holder is not None and holder is self.first[holder.alias.storage])
            if number not in self.inputs and not is_set and base.version:
                late[number] = base.version
        return late


def _moves(op: Op) -> bool:
    return op.func not in _BUMPS_NOTHING and op.renames is not None and op.renames.geometry != op.outputs.geometry


def _shows_less(op: Op) -> bool:
    """Whether a tensor may show less of its memory after a change of its metadata."""
    before, after = op.renames, op.outputs
    assert before is not None
    is_grown = op.func is not aten.as_strided_.default and after.spec.extent >= before.spec.extent
    return (op.func in _CHANGES_EXTENT and not is_grown) or not surely_covered(before, after)


def _as_one_view(number: int, base: Alias, alias: Alias, grad_enabled: bool) -> RedoView:
    func: Any = aten.as_strided.default
    geometry: list[Any] = [list(alias.size), list(alias.stride), alias.offset]
    if alias.spec.is_contiguous and alias.geometry == base.geometry:
        func, geometry = aten.view.default, geometry[:1]
    return RedoView(number, func, (Ref(base.object), *geometry), {}, grad_enabled, None, is_in_place=False)


def _refusal(what: str, op: Op) -> CaptureError:
    return CaptureError(f"{what}.\n  at {op.origin}\nMake a copy first, with clone().")
