"""Counters: which tensors share a version counter, by which autograd knows that one of them was written."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from foregrad.record.ops import Alias
from foregrad.record.trace import Trace, TracedInput


@dataclass(frozen=True)
class Counters:
    trace: Trace

    def first_alias(self, number: int) -> Alias:
        """An object as it came into being."""
        renames = self.trace.renames.get(number)
        if renames:
            assert renames[0].renames is not None
            return renames[0].renames
        return self.trace.objects[number]

    def of(self, number: int) -> int:
        """The object whose version counter this one shares; its own, if it is no view of another or its `.data`."""
        while (source := self._shares_with(number)) is not None:
            number = source
        return number

    def _shares_with(self, number: int) -> int | None:
        lifted = self._inputs.get(number)
        if lifted is not None:
            source = lifted.base or lifted.counter
            return None if source is None else source.alias.object
        alias = self.first_alias(number)
        if alias.parent is None or alias.parent.object == number or alias.op in self.trace.unshared:
            return None
        return alias.parent.object

    @cached_property
    def _inputs(self) -> dict[int, TracedInput]:
        return {lifted.alias.object: lifted for lifted in self.trace.inputs}
