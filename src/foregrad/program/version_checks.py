"""Checks: which tensors must not have been written when a backward runs, as autograd has it.

Autograd knows a write by the version counter of the tensor that a node saved. A value that the program keeps for
backward may lie in memory that the caller sees through several tensors, with counters of their own (`x` and `x.data`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from foregrad.record.trace import DeadEnd


@dataclass(frozen=True)
class Checks:
    """Counters are known by the object that they belong to."""

    #: Counters that can be seen after the call, and a tensor of the call that has each.
    holders: dict[int, int] = field(default_factory=dict)
    #: The counter of each input and result.
    counters: dict[int, int] = field(default_factory=dict)
    #: For values of the forward, the counters of the tensors through which backward reads them.
    readers: dict[str, set[int]] = field(default_factory=dict)
    #: The counters of what the nodes have saved that eager's backward would run.
    saved: frozenset[int] = frozenset()
    #: For each source of the backward.
    dead_ends: tuple[DeadEnd | None, ...] = ()

    def is_read_past(self, value: str, counter: int) -> bool:
        """Whether backward reads a value through tensors that do not notice writes counted by this counter."""
        return not self.readers.get(value, set()) <= {counter}
