"""Storage values: the newest value of a storage."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import fx

from foregrad.record.ops import Alias


@dataclass(slots=True, eq=False)
class Contents:
    """The newest value of a storage, seen through `root`; `flat` if it is the whole storage as one row."""

    node: fx.Node
    root: Alias
    flat: bool = False
    generation: int = 0

    @property
    def is_row(self) -> bool:
        """Whether elements lie one after another, from the start of the storage on."""
        return self.flat or (self.root.spec.is_contiguous and not self.root.offset)

    @property
    def row(self) -> Alias:
        """The whole storage as an alias of it, where it is seen as one row."""
        spec = self.node.meta["spec"]
        return replace(self.root, size=spec.shape, stride=spec.stride, offset=0, parent=None, op=None)

    def has_part(self, alias: Alias) -> bool:
        """Whether an alias shows a part of the storage only, in the dtype of the whole."""
        start, extent = (0, self.node.meta["spec"].extent) if self.flat else (self.root.offset, self.root.spec.extent)
        is_alike = (alias.dtype, alias.bits) == (self.root.dtype, self.root.bits)
        return is_alike and (alias.offset, alias.spec.extent) != (start, extent)
