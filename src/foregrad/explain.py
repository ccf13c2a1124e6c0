"""Explain: what a compiled function has captured so far, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foregrad.compile import Capture, Compiled
from foregrad.modules import CompiledForward, compiled_of


@dataclass(frozen=True)
class Explanation:
    """The captures of a compiled function, in order, each with its `reason`."""

    name: str
    captures: tuple[Capture, ...]

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.captures)} captured program{'' if len(self.captures) == 1 else 's'}"]
        for number, made in enumerate(self.captures, 1):
            lines.append(f"  {number}. {made.reason} ({made.num_nodes} nodes); {made.origin}")
        return "\n".join(lines)


def explain(compiled: Any) -> Explanation:
    """What a compiled function or module has captured so far, with the reason for each capture."""
    function = compiled_of(compiled) if isinstance(compiled, CompiledForward) else compiled
    if not isinstance(function, Compiled):
        raise TypeError(f"explain takes what fg.compile returned, not a {type(compiled).__name__}")
    return Explanation(function.name, function.captures)
