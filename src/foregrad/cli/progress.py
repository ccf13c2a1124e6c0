"""A bar on the terminal for a file that takes a while to read. It goes to stderr: what is printed stays clean."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

import click

#: Who waits for less is told nothing.
_PATIENCE_SECONDS = 1.0


class Progress:
    """Counts bytes, and shows how many of them are done once that has taken a second."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._begin = time.monotonic()
        self._done = 0
        self._bar: Any = None

    def add(self, length: int, whole: int) -> None:
        """So many more bytes are done, of so many in all."""
        self._done += length
        if self._bar is not None:
            self._bar.update(length)
        elif sys.stderr.isatty() and time.monotonic() - self._begin > _PATIENCE_SECONDS:
            self._bar = click.progressbar(length=whole, label=self._label, file=sys.stderr).__enter__()
            self._bar.update(self._done)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.__exit__(kind, error, trace)
