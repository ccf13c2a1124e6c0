"""Call sequence: C++ functions called one after another, without Python between them."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Series:
    """Calls of functions on tensors, as a table with places in `addresses` in place of addresses."""

    run: Callable[..., None]
    addresses: tuple[Callable[[], int], ...]
    table: tuple[int, ...]

    def __post_init__(self) -> None:
        words, at = array("q", self.table), 1
        for _ in range(words[0]):
            words[at] = self.addresses[words[at]]()
            at += 2 + 2 * words[at + 1]
        object.__setattr__(self, "_words", words.tobytes())

    def __call__(self, *tensors: Any) -> None:
        self.run(self._words, *tensors)  # type: ignore[attr-defined]
