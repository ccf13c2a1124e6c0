"""Guards of torch's own, in C++."""

from __future__ import annotations

from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards

__all__ = [
    "GlobalStateGuard",
    "TensorGuards",
    "global_state",
    "global_state_guard",
]


def global_state() -> str:
    """Modes of torch that hold everywhere, as a text: gradients, autocast, the default dtype, threads."""
    return str(GlobalStateGuard().__getstate__())


def global_state_guard(state: str) -> GlobalStateGuard:
    """A guard for modes that were noted before."""
    guard = GlobalStateGuard()
    guard.__setstate__(state)  # type: ignore[attr-defined]
    return guard
