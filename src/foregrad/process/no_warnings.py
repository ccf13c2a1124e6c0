"""No warnings from one thread, while others warn as always."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from foregrad.process.temporary import TemporaryChange


class _Filter(TemporaryChange):
    """A filter that ignores the warnings of quiet threads. `warnings.catch_warnings` is one for all threads: two of
    them that end in the order in which they began leave the filters of the first to the process."""

    places = ("warnings.filters",)

    def __init__(self) -> None:
        super().__init__()
        self._entry: Any = ("ignore", self, Warning, None, 0)

    def match(self, text: str) -> bool:
        """In the place of a pattern: matches every text in threads that are quiet."""
        return self.here is not None

    def change(self) -> None:
        warnings.filters.insert(0, self._entry)  # type: ignore[attr-defined]

    def put_back(self) -> None:
        warnings.filters[:] = [one for one in warnings.filters if one is not self._entry]  # type: ignore[index]


_filter = _Filter()


@contextmanager
def no_warnings() -> Iterator[None]:
    """Ignore the warnings of this thread."""
    with _filter.held("quiet"):
        yield
