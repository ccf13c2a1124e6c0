"""Symbol nodes: what torch asks of the object behind a `torch.SymFloat` or `torch.SymInt`."""

from __future__ import annotations


class Symbolic:
    """A number whose value no graph may hold; floats unless a kind of node says otherwise."""

    __slots__ = ()

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def is_bool(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return False

    def maybe_as_float(self) -> None:
        return None
