"""Data values: numbers that depend on data, as `.item()` gives them to a step.

Such a number is a tensor without dimensions, in double precision, in the clothes of a number: arithmetic on it is part
of the program, and so is what an op does with it. Python cannot know its value: a branch on it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.record.ops import Alias
from foregrad.record.session import MAX, MIN
from foregrad.record.symbols.node import Symbolic


@dataclass(frozen=True, slots=True, eq=False)
class ItemNode(Symbolic):
    """What torch calls a node: the object behind the number. `refuse` says that Python cannot know it."""

    tensor: torch.Tensor
    refuse: Callable[[torch.Tensor], Any]

    def guard_float(self, file: str, line: int) -> Any:
        return self.refuse(self.tensor)


@dataclass(frozen=True, slots=True)
class ItemOf:
    """The number in a tensor, among the arguments of a recorded op or the results of a function."""

    alias: Alias


def item_of(value: Any) -> ItemNode | None:
    node = value.node if isinstance(value, torch.SymFloat) else None
    return node if isinstance(node, ItemNode) else None


def _arithmetic(compute: Callable[[Any, Any], torch.Tensor]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return Item(ItemNode(compute(self.node.tensor, _plain(other)), self.node.refuse))

    return method


def _refused(self: Any, *_: Any) -> Any:
    return self.node.refuse(self.node.tensor)


_METHODS: dict[str, Any] = {
    "__add__": _arithmetic(lambda x, y: x + y),
    "__radd__": _arithmetic(lambda x, y: y + x),
    "__sub__": _arithmetic(lambda x, y: x - y),
    "__rsub__": _arithmetic(lambda x, y: y - x),
    "__mul__": _arithmetic(lambda x, y: x * y),
    "__rmul__": _arithmetic(lambda x, y: y * x),
    "__truediv__": _arithmetic(lambda x, y: x / y),
    "__rtruediv__": _arithmetic(lambda x, y: _as_tensor(y) / x),
    "__neg__": lambda self: Item(ItemNode(-self.node.tensor, self.node.refuse)),
    **dict.fromkeys(
        (
            *(f"__{name}__" for name in ("pow", "rpow", "floordiv", "rfloordiv", "mod", "rmod", "abs", "round")),
            *(f"__{name}__" for name in ("lt", "le", "gt", "ge", "eq", "ne", "bool", "int", "float", "hash")),
            *(f"__{name}__" for name in ("repr", "str", "format", "floor", "ceil", "trunc")),
        ),
        _refused,
    ),
}
Item: Any = type("Item", (torch.SymFloat,), {**_METHODS, "__class__": property(lambda self: float)})


def _plain(value: Any) -> Any:
    return value.node.tensor if isinstance(value, Item) else value


def _as_tensor(value: Any) -> torch.Tensor:
    """A number in double precision, as a tensor."""
    value = _plain(value)
    return value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=torch.float64)


@contextmanager
def items_in_max_and_min() -> Iterator[None]:
    """Let `max` and `min` take such numbers; for all others they do what they always do."""
    with MAX.by(_choosing(torch.gt)), MIN.by(_choosing(torch.lt)):
        yield


def _choosing(is_better: Callable[..., torch.Tensor]) -> Any:
    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs or not any(isinstance(a, Item) for a in args):
            return function(*args, **kwargs)
        refuse = next(a.node.refuse for a in args if isinstance(a, Item))
        best, *others = map(_as_tensor, args)
        for other in others:
            best = torch.where(is_better(other, best), other, best)
        return Item(ItemNode(best, refuse))

    return call
