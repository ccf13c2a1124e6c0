"""Options: how programs are made to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from foregrad.backends.backend import Backend, Runner
from foregrad.backends.choose import on_this_machine, passes_for

if TYPE_CHECKING:
    from foregrad.program.program import Program

Pass = Callable[["Program"], "Program"]


@dataclass(frozen=True)
class Options:
    """The options of a compiled function or step, after they were checked. `docs/options.md` says who needs which."""

    backend: Backend  # with `rng` and `regions`; in the key
    passes: tuple[Pass, ...] = ()  # the user's, then those of the backend; in the key
    shows_progress: bool = True
    cache: Any = None  # a `Cache`, where compiled programs are kept
    questions: str = "error"  # "tree": Python may ask the data, and there is a program for each answer; in the key
    refused: str = "error"  # "eager": what cannot be captured runs as it is, with a warning
    python: str = "warn"  # side effects, which no program repeats: named, refused ("error"), or let pass; in the key
    dynamic: Any = False  # which sizes vary: `api.options.Choice`; in the key

    def here(self) -> Options:
        """The same in another process, perhaps on another machine."""
        backend = on_this_machine(self.backend)
        if backend is self.backend:
            return self
        needless = passes_for(self.backend)
        return replace(self, backend=backend, passes=tuple(one for one in self.passes if one not in needless))


@dataclass(frozen=True)
class Known:
    """The compiled halves of a program, if an earlier process has left them, and how to leave them."""

    forward: Runner | None = None
    backward: Runner | None = None
    keep: Callable[[Runner | None, Runner | None], None] = lambda forward, backward: None


#: Looks for the compiled halves of a program. While one process makes them, others that want the same wait for it.
Claim = Callable[["Program"], AbstractContextManager[Known]]


@contextmanager
def claim_nothing(program: Program) -> Iterator[Known]:
    """Where nothing is kept."""
    yield Known()
