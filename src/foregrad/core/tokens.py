"""Tokens: what stands in a graph for the state of a generator, or for the world that an effect changes.

An op that draws, or has an effect, stays as it is; a link after it says when it runs:

    rand = aten.rand([3])
    rng_cpu_1 = after(rng_cpu, rand)

A graph takes the first token of a chain of links, and gives the last: so no op of it is dead, and their order is plain
to see.
"""

from __future__ import annotations

from typing import Any

#: Roles of inputs and outputs that are the ends of a chain.
TOKEN_ROLES = ("rng", "rng in backward", "token", "token in backward")


def after(token: Any, value: Any) -> Any:
    """The state after an op has run: whoever holds it holds the op. `value` is what the op gave."""
    return token
