"""Symbol nodes: what torch asks of the object behind a `torch.SymFloat` or `torch.SymInt`."""

from __future__ import annotations

from typing import Any


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


def refuse_array(self: Any, *options: Any, **more: Any) -> Any:
    """NumPy asks for an array: it would take the object for no number, and compute by its methods, otherwise than with
    numbers. The error tells a capture that it needs the value."""
    raise TypeError(f"NumPy asks a {type(self).__name__} for its value")


def init_of(base: Any) -> Any:
    """The constructor of a class of symbols. Code that makes a number of the type of another, as `statistics.mean`
    does, gets an error, by which a capture learns that it needs the value."""

    def init(self: Any, node: Any) -> None:
        if not isinstance(node, Symbolic):
            raise TypeError(f"a {type(self).__name__} is made of an expression, not of a {type(node).__name__}")
        base.__init__(self, node)

    return init
