"""Way: how programs are made to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foregrad.backends.backend import Backend

if TYPE_CHECKING:
    from foregrad.program.program import Program

Pass = Callable[["Program"], "Program"]


@dataclass(frozen=True)
class Way:
    """What changes programs first, what compiles them, and where they are kept."""

    backend: Backend
    passes: tuple[Pass, ...] = ()
    shows_progress: bool = True
    cache: Any = None  # a `Cache`, where compiled programs are kept
    dynamic: Any = False  # which sizes vary: `dynamic.Choice`
