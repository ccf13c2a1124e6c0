"""Fallback warnings: what of a program is not compiled is said once, when the program is made or found."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from foregrad.backends.guarded_code import Guarded
from foregrad.core.errors import CannotKeep, FallbackWarning
from foregrad.record.frames import user_frame
from foregrad.record.ops import Origin
from foregrad.regions.fallbacks import FAILED, KERNEL, SECOND, Fallback

#: Names of programs, and what was said of them.
_said: set[tuple[str, str]] = set()


def slow_parts(runs: Iterable[Any]) -> list[str]:
    """What compiled halves run op by op, in a line each; a compiler would call some kernels by name, too."""
    return [f"{half}: {one}" for half, one in _fallbacks(runs) if one.why.kind != KERNEL]


def warn_of_slow_parts(name: str, slow: Sequence[str]) -> None:
    """Warn at the user's line that runs. A program has several backwards: nothing is said twice."""
    new = [line for line in slow if (name, line) not in _said]
    if not new:
        return
    _said.update((name, line) for line in new)
    said = "\n".join(f"  {line}" for line in new)
    message = f"a part of {name} is not compiled, and runs slower, with the same results:\n{said}"
    origin = Origin(*user_frame(2), "")
    if origin.code is None:
        warnings.warn(message, FallbackWarning, stacklevel=2)
    else:
        warnings.warn_explicit(message, FallbackWarning, origin.file, origin.line)


def check_compiled(runs: Iterable[Any]) -> None:
    """Refuse to keep what a compiler failed at: the next process shall try again."""
    failed = [f"{half}: {one.why.reason}" for half, one in _fallbacks(runs) if one.why.kind in (FAILED, SECOND)]
    if failed:
        raise CannotKeep("; ".join(failed))


def _fallbacks(runs: Iterable[Any]) -> list[tuple[str, Fallback]]:
    return [(run.name, one) for run in runs if isinstance(run, Guarded) for one in run.fallbacks]
