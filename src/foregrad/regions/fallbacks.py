"""Fallbacks: ops of a region of which a compiler made no loops, so that they run one by one, and why.

aten._fft_r2c and 7 more ops run one by one: complex numbers, first at model.py:12 in forward
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

#: A kernel that a compiler would call by its name, too: nothing is lost.
KERNEL = "kernel"
#: No loop can stand for it.
REFUSED = "refused"
#: A compiler failed, which it may not do the next time.
FAILED = "failed"
#: It failed at the better of two forms, and made the other one.
SECOND = "second"


@dataclass(frozen=True)
class Why:
    """Why an op runs by itself."""

    kind: str
    reason: str


@dataclass(frozen=True)
class Fallback:
    """Ops that run one by one: how many, the first of them, why, and the user's line that it comes from."""

    count: int
    op: str
    why: Why
    line: str

    def __str__(self) -> str:
        more = f" and {self.count - 1} more op{'s' if self.count > 2 else ''}"
        at = f", first at {self.line}" if self.line else ""
        if self.why.kind == SECOND:
            return f"{self.op}{more if self.count > 1 else ''}: {self.why.reason}{at}"
        more += " run one by one"
        return f"{self.op}{more if self.count > 1 else ' runs by itself'}: {self.why.reason}{at}"

    def times(self, count: int) -> Fallback:
        return replace(self, count=self.count * count)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(found: dict[str, Any]) -> Fallback:
        return Fallback(**{**found, "why": Why(**found["why"])})


def together(fallbacks: Iterable[Fallback]) -> tuple[Fallback, ...]:
    """Each reason once, with the first op that has it."""
    found: dict[Why, Fallback] = {}
    for one in fallbacks:
        first = found.setdefault(one.why, replace(one, count=0))
        found[one.why] = replace(first, count=first.count + one.count, line=first.line or one.line)
    return tuple(found.values())
