"""Declared state at each call: generated code that reads it, checks its structure, and stores what the program made.

Numbers are bound to their names `n3` in the order in which the function computed them, each after everything that
Python was told before: what is evaluated is what eager would evaluate.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.core.generated import Check
from foregrad.core.size import VARYING, Shape
from foregrad.core.source import Source
from foregrad.core.spec import is_number
from foregrad.record.lift.declared_state import Container, Declared, Slot
from foregrad.record.ops import ItemOf
from foregrad.record.symbols.numbers import INFIX, Expression, Told, infix
from foregrad.record.trace import OuterRef, Ref
from foregrad.runtime.guards.reasons import check_that


class StateReader:
    """Writes the reading of declared state: containers are bound to `h3`, numbers to `n3`."""

    def __init__(self, declared: Declared, source: Source, bound: dict[int, str]) -> None:
        self.declared = declared
        self.source = source
        self.bound = bound  # tensors by id: the names that they are bound to
        self.numbers = declared.numbers

    def compare(self, condition: str, expression: str, label: str, was: Any) -> None:
        self.source.check(check_that(condition, expression, label, was))

    # -- containers -------------------------------------------------------------------------------------

    def containers(self) -> None:
        """Emit the binding of every container, and what must be as it was in each."""
        if not self.declared.containers:
            return
        with self.or_miss():
            for container in self.declared.containers:
                self.source.line(f"h{container.index} = {self._entry(container.slot)}")
                self._check(container)

    @contextmanager
    def or_miss(self) -> Iterator[None]:
        """Emit a block that misses where something is not there."""
        with self.source.block("try:"):
            yield
        with self.source.block("except (KeyError, IndexError, TypeError, AttributeError):"):
            self.source.line("return MISS")

    def slot(self, slot: Slot) -> str:
        """What a slot holds, as an expression."""
        return slot_text(slot, self.source, self.bound)

    def _entry(self, slot: Slot) -> str:
        """A container where it is kept; an optimizer's state would make an entry that it does not have."""
        if isinstance(slot.key, torch.Tensor):
            return f"h{slot.holder.index}.get({key_text(slot.key, self.source, self.bound)})"
        return self.slot(slot)

    def _check(self, container: Container) -> None:
        name, items = f"h{container.index}", container.items
        self.compare(f"len({name}) != {len(items)}", f"len({name})", f"entries in {container.slot.name}", len(items))
        missing = []
        for key, value in items.items():
            slot = container.slot_of(key)
            if isinstance(value, torch.Tensor) or is_number(value):
                missing += [f"{self._key(slot)} not in {name}"] if isinstance(container.value, dict) else []
            elif not isinstance(value, (dict, list, tuple)):
                self.compare(self._differs(slot, value), self.slot(slot), slot.name, value)
        if missing:
            self.compare(" or ".join(missing), f"list({name})", f"entries in {container.slot.name}", list(items))

    def _key(self, slot: Slot) -> str:
        return key_text(slot.key, self.source, self.bound)

    def _differs(self, slot: Slot, value: Any) -> str:
        """How to tell that a slot holds something else; tensors, numbers and containers are read elsewhere."""
        text = self.slot(slot)
        if isinstance(value, (str, bytes, complex, int, float)) and not isinstance(value, bool):
            kind = self.source.name("type_of", type(value))
            return f"type({text}) is not {kind} or {text} != {self.source.name('k', value)}"
        return f"{text} is not {self.source.constant(value)}"

    def identities(self) -> None:
        """Emit the check that lists of tensors, such as the parameters of a group, hold the tensors that they held."""
        for container in self.declared.containers:
            tensors = [v for v in container.items.values() if isinstance(v, torch.Tensor)]
            if tensors and len(tensors) == len(container.items) and not isinstance(container.value, dict):
                names = "".join(f"{key_text(t, self.source, self.bound)}, " for t in tensors)
                same = f"all(map({self.source.name('is_', operator.is_)}, h{container.index}, ({names})))"
                self.source.check(Check(f"not {same}", "a list of the state holds other tensors"))

    # -- numbers ----------------------------------------------------------------------------------------

    def values(self, wanted: Iterable[Expression]) -> None:
        """Emit the numbers that are wanted, and the checks of what Python was told about any."""
        told = list(self.numbers.told)
        needed = _needed([*wanted, *(t.expression for t in told)])
        self._reads({e for e in needed if e in self.declared.reads})
        for expression in self.numbers.all:
            while told and told[0].after <= expression.index:
                self._told(told.pop(0))
            if expression in needed and expression not in self.declared.reads:
                self._number(expression)
        for one in told:
            self._told(one)

    def _reads(self, expressions: set[Expression]) -> None:
        """Tensors that held one number hold one number again."""
        number_of = self.source.name("number_of", torch.Tensor.item)
        for expression in sorted(expressions, key=lambda e: e.index):
            names = [self.bound[id(t)] for t in self.declared.reads[expression]]
            if len(names) == 1:
                self.source.line(f"n{expression.index} = {names[0]}.item()")
                continue
            self.source.line(f"n{expression.index}, *rest = map({number_of}, ({', '.join(names)}))")
            self.source.check(Check(f"rest.count(n{expression.index}) != {len(names) - 1}"))

    def _number(self, expression: Expression) -> None:
        name = f"n{expression.index}"
        if expression.function is None and expression.is_given:
            return  # the guards of the arguments have bound it
        if expression.function is None:
            self.source.line(f"{name} = {self.slot(self.declared.slots[expression.source])}")
            kind = type(expression.value).__name__
            self.compare(f"type({name}) is not {kind}", name, expression.text, expression.value)
            return
        args = [f"n{a.index}" if isinstance(a, Expression) else self.source.constant(a) for a in expression.args]
        if expression.function in INFIX:
            text = infix(expression.function, args)
        elif expression.function is operator.neg:
            text = f"-{args[0]}"
        else:
            text = f"{self.source.name(expression.function.__name__, expression.function)}({', '.join(args)})"
        self.source.line(f"{name} = {text}")
        if expression.function is operator.pow:  # whether an integer or a float comes out depends on the numbers
            kind = type(expression.value).__name__
            self.compare(f"type({name}) is not {kind}", name, expression.text, expression.value)

    def _told(self, told: Told) -> None:
        name, value = f"n{told.expression.index}", told.value
        said = name, f"{told.expression.text} ({told.line})", value
        if isinstance(value, bool):
            self.compare(f"{name} is not {value}", *said)
        elif value != value:
            self.compare(f"{name} == {name}", *said)
        else:
            sign = f" or str({name}) != {str(value)!r}" if value == 0 else ""
            self.compare(f"{name} != {self.source.constant(value)}{sign}", *said)


def _needed(wanted: Iterable[Expression]) -> set[Expression]:
    found: set[Expression] = set()
    stack = list(wanted)
    while stack:
        expression = stack.pop()
        if expression not in found:
            found.add(expression)
            stack += [a for a in expression.args if isinstance(a, Expression)]
    return found


def slot_text(slot: Slot, source: Source, bound: dict[int, str]) -> str:
    if isinstance(slot.holder, Container):
        return f"h{slot.holder.index}[{key_text(slot.key, source, bound)}]"
    return f"{source.name('state', slot.holder)}.{slot.key}"


def key_text(key: Any, source: Source, bound: dict[int, str]) -> str:
    if isinstance(key, torch.Tensor):
        return bound.get(id(key)) or source.name("tensor", key)
    return source.constant(key)


def emit_stores(source: Source, slots: Iterable[Slot], values: Iterable[Any], bound: dict[int, str]) -> None:
    """Put what the program made where the function puts it; `bound` are names of tensors, by id."""
    for slot, value in zip(slots, values, strict=True):
        source.line(f"{slot_text(slot, source, bound)} = {literal(source, value)}")


def literal(source: Source, value: Any) -> str:
    """A value with tensors and numbers by their names."""
    if isinstance(value, Ref):
        return f"o{value.object}"
    if isinstance(value, OuterRef):
        return str(value)
    if isinstance(value, ItemOf):
        return f"o{value.alias.object}.item()"
    if isinstance(value, Expression):
        return f"n{value.index}"
    if isinstance(value, VARYING):
        return repr(value)
    if isinstance(value, Shape):
        return f"{source.name('Size', torch.Size)}({tuple(value)!r})"
    if type(value) is dict:
        return "{" + ", ".join(f"{source.constant(k)}: {literal(source, v)}" for k, v in value.items()) + "}"
    if type(value) is tuple:
        return f"({''.join(literal(source, v) + ', ' for v in value)})"
    if type(value) is list:
        return f"[{', '.join(literal(source, v) for v in value)}]"
    return source.name("plain", value)
