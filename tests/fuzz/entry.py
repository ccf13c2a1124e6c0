"""Entry: one observed fact of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Entry:
    """One observed fact; with a value it is a tensor that may be compared within a tolerance."""

    what: str
    fact: Any
    value: torch.Tensor | None = None
    exact: bool = True  # counts where the function is compiled: the graph of an eager one shows what is inside, too
    detail: str = ""
