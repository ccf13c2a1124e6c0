"""StorageTable: the storages of a recording, and all aliases of each that it has met so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from foregrad.record.ops import Alias, Op, Storage, aliases_read


@dataclass(eq=False, slots=True)
class StorageRecord:
    """One block of memory while a function is recorded."""

    handle: torch.UntypedStorage
    aliases: list[Alias] = field(default_factory=list)
    num_writes: int = 0
    is_grown: bool = False
    num_bytes: int = 0  # of the real memory, if it is that of an input

    @property
    def root(self) -> Alias:
        """The first alias."""
        return self.aliases[0]


class StorageTable(dict[Storage, StorageRecord]):
    """What is known of each storage."""

    def forget(self, start: int) -> None:
        """Let go of the aliases that the ops from this one on have made."""
        for block in self.values():
            block.aliases[:] = [a for a in block.aliases if a.op is None or a.op < start]

    def recall(self, ops: Sequence[Op]) -> None:
        """Put the aliases of these ops back: recording another backward has removed some of them."""
        looks: dict[Storage, dict[int, Alias]] = {}
        for alias in aliases_read([(op.args, op.kwargs, op.outputs) for op in ops]):
            looks.setdefault(alias.storage, {})[alias.index] = alias
        for storage, found in looks.items():
            aliases = self[storage].aliases
            found |= {alias.index: alias for alias in aliases}
            aliases[:] = [found[index] for index in sorted(found)]
