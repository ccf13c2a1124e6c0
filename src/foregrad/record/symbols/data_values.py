"""Data values: numbers that depend on data, as `.item()` gives them to a step.

Such a number stands for a tensor without dimensions, in double precision: arithmetic on it is part of the program, and
so is what an op does with it. A comparison is a question about its truth; where Python needs the number itself, that is
a question about its value. Where nothing may be asked, both are refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from foregrad.record.session import MAX, MIN
from foregrad.record.symbols.node import Symbolic, init_of, refuse_array
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes


class Data(Protocol):
    """Who answers questions about data, or refuses them."""

    items: list[Any]  # the numbers that were made

    @property
    def may_ask(self) -> bool: ...

    def of(self, tensor: torch.Tensor) -> torch.Tensor: ...

    def truth(self, tensor: torch.Tensor) -> bool | None: ...


@dataclass(frozen=True, slots=True, eq=False)
class ItemNode(Symbolic):
    """What torch calls a node: the object behind the number."""

    tensor: torch.Tensor
    data: Data
    is_positive: bool = False  # whatever the data

    def guard_float(self, file: str, line: int) -> Any:
        return self.known()

    def known(self) -> Any:
        """The number itself: from here on the program holds for this value only."""
        value = self.data.of(self.tensor)
        with no_dispatch_modes(), no_function_modes():  # the value is no tensor of the function's
            return value.item()


def number(tensor: torch.Tensor, data: Data, *, is_positive: bool = False) -> Any:
    """The number in a tensor without dimensions."""
    made = Item(ItemNode(tensor, data, is_positive))
    data.items.append(made)
    return made


def item_of(value: Any) -> ItemNode | None:
    node = value.node if isinstance(value, torch.SymFloat) else None
    return node if isinstance(node, ItemNode) else None


def _arithmetic(compute: Callable[[Any, Any], torch.Tensor]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor) or not _is_number(other):
            return NotImplemented
        return number(compute(self.node.tensor, _plain(other)), self.node.data)

    return method


def _comparison(compare: Callable[[Any, Any], torch.Tensor]) -> Any:
    def method(self: Any, other: Any) -> Any:
        if not _is_number(other):
            return NotImplemented
        if _is_large(other):  # Python compares exactly
            return getattr(self.node.known(), f"__{compare.__name__}__")(other)
        compared = compare(self.node.tensor, _plain(other))
        found = self.node.data.truth(compared)
        return bool(self.node.data.of(compared)) if found is None else found

    return method


def _ratio(one: Any, other: Any) -> Any:
    """A ratio of numbers, one of which is such a number. Python raises where a tensor gives infinity."""
    if not (_is_number(one) and _is_number(other)):
        return NotImplemented
    data = next(number.node.data for number in (one, other) if isinstance(number, Item))
    may_be_zero = not isinstance(other, Item) or (data.may_ask and not other.node.is_positive)
    if may_be_zero and other == 0:
        raise ZeroDivisionError("float division by zero")
    return number(_as_tensor(one) / _plain(other), data)


def _known(value: Any) -> Any:
    """A plain number, where it may be a symbol."""
    return value.node.known() if isinstance(value, (torch.SymFloat, torch.SymInt)) else value


def _on_value(name: str) -> Any:
    def method(self: Any, *others: Any) -> Any:
        return getattr(self.node.known(), name)(*map(_known, others))

    return method


_ON_VALUE = (
    *("pow", "rpow", "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod"),
    *("abs", "round", "int", "float", "hash", "repr", "str", "format", "floor", "ceil", "trunc"),
)

_METHODS: dict[str, Any] = {
    "__add__": _arithmetic(lambda x, y: x + y),
    "__radd__": _arithmetic(lambda x, y: y + x),
    "__sub__": _arithmetic(lambda x, y: x - y),
    "__rsub__": _arithmetic(lambda x, y: y - x),
    "__mul__": _arithmetic(lambda x, y: x * y),
    "__rmul__": _arithmetic(lambda x, y: y * x),
    "__truediv__": lambda self, other: _ratio(self, other),
    "__rtruediv__": lambda self, other: _ratio(other, self),
    "__neg__": lambda self: number(-self.node.tensor, self.node.data),
    "__pos__": lambda self: self,
    "__init__": init_of(torch.SymFloat),
    "__array__": refuse_array,
    "__array_ufunc__": None,  # numbers of NumPy's let it compute
    "__bool__": lambda self: self != 0.0,
    "real": property(lambda self: self),
    "imag": property(lambda self: 0.0),
    "__copy__": lambda self: self,
    "__deepcopy__": lambda self, memo: self,
    **{f"__{one.__name__}__": _comparison(one) for one in (torch.lt, torch.le, torch.gt, torch.ge, torch.eq, torch.ne)},
    **{f"__{name}__": _on_value(f"__{name}__") for name in _ON_VALUE},
    "is_integer": _on_value("is_integer"),
}
Item: Any = type("Item", (torch.SymFloat,), {**_METHODS, "__class__": property(lambda self: float)})


def _is_number(value: Any) -> bool:
    """Whether a value is one of Python's own numbers, or stands for one; those of NumPy have rules of their own, but in
    double precision."""
    return isinstance(value, (int, float, torch.SymFloat, torch.SymInt))


def _plain(value: Any) -> Any:
    """A number as an argument of an op; an integer that no op takes as Python computes with it."""
    if isinstance(value, Item):
        return value.node.tensor
    return float(value) if _is_large(value) else value


def _is_large(value: Any) -> bool:
    """Whether a number may be none in double precision."""
    return isinstance(value, int) and abs(value) > 1 << 53


def _as_tensor(value: Any) -> torch.Tensor:
    """A number in double precision, as a tensor."""
    value = _plain(value)
    return value if isinstance(value, torch.Tensor) else torch.scalar_tensor(value, dtype=torch.float64)


_TRUTHS = {math.isfinite: torch.isfinite, math.isnan: torch.isnan, math.isinf: torch.isinf}


def over_items(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A function of `math`, which may be asked about such a number."""
    if function in _TRUTHS and len(args) == 1 and isinstance(args[0], Item) and not kwargs:
        found = args[0].node.data.truth(_TRUTHS[function](args[0].node.tensor))
        if found is not None:
            return found
    return function(*args, **kwargs)


@contextmanager
def items_in_max_and_min() -> Iterator[None]:
    """Let `max` and `min` take such numbers; for all others they do what they always do."""
    with MAX.by(_choosing(torch.gt)), MIN.by(_choosing(torch.lt)):
        yield


def _choosing(is_better: Callable[..., torch.Tensor]) -> Any:
    def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if kwargs or not any(isinstance(a, Item) for a in args):
            return function(*args, **kwargs)
        data = next(a.node.data for a in args if isinstance(a, Item))
        if data.may_ask and not all(isinstance(a, float) for a in args):
            return function(*args)  # it may be an integer
        best, *others = map(_as_tensor, args)
        for other in others:
            best = torch.where(is_better(other, best), other, best)
        has_floor = is_better is torch.gt and any(not isinstance(a, Item) and a > 0 for a in args)
        return number(best, data, is_positive=has_floor)

    return call
