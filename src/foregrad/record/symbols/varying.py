"""Varying: a dimension of an argument that is to vary, and within which bounds."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

#: Why something is assumed about a size.
AS_SAID, AS_SEEN = "as dynamic= or a mark says", "as it was in all calls that were captured"


@dataclass(frozen=True, slots=True)
class Varying:
    """A dimension of which the size varies: from `least` to `most`, and a multiple of a number, where somebody has said
    so; `same_as` is a dimension that had the same size in all calls so far."""

    dim: int
    least: int = 2
    most: int | None = None
    multiple: int = 1
    same_as: tuple[str, int] | None = None

    def allows(self, size: int) -> bool:
        """Whether a size is one of those. 0 and 1 behave otherwise, and have programs of their own."""
        is_within = max(2, self.least) <= size and (self.most is None or size <= self.most)
        return is_within and size % self.multiple == 0

    def as_json(self) -> list[Any]:
        *plain, same_as = astuple(self)
        return [*plain, None if same_as is None else list(same_as)]

    @staticmethod
    def from_json(data: Any) -> Varying:
        dim, least, most, multiple, same_as = data
        return Varying(dim, least, most, multiple, None if same_as is None else (str(same_as[0]), int(same_as[1])))


#: Which dimensions vary, by the name of the argument.
Dimensions = dict[str, tuple[Varying, ...]]
