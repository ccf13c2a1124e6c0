"""Wrapper views: which wrapper subclasses are views of which, so that each call can make the same views."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from foregrad.core.wrapper_subclass import is_wrapper, parts
from foregrad.torch_private.tensors import storage_key


@dataclass(frozen=True, eq=False, slots=True)
class Call:
    """A call of the user's that gave a view of a tensor that wraps others."""

    of: torch.Tensor
    func: Any
    args: Any
    kwargs: dict[str, Any]
    item: int | None
    grad_enabled: bool


class WrapperViews:
    """Which tensors that wrap others are views of which, as far as calls to torch have shown."""

    def __init__(self) -> None:
        self._calls: dict[int, Call] = {}
        self._alive: list[torch.Tensor] = []

    def note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        many = isinstance(result, (list, tuple))
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and is_wrapper(value)]
        for place, one in enumerate(result if many else [result]):
            if isinstance(one, torch.Tensor) and is_wrapper(one) and not any(one is value for value in given):
                of = next((value for value in given if _memory(one) <= _memory(value)), None)
                if of is not None:
                    item = place if many else None
                    self._calls[id(one)] = Call(of, func, args, kwargs, item, torch.is_grad_enabled())
                    self._alive.append(one)

    def call(self, tensor: torch.Tensor) -> Call | None:
        return self._calls.get(id(tensor))

    def root(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor at the other end of a chain of views."""
        while (call := self.call(tensor)) is not None:
            tensor = call.of
        return tensor


def _memory(tensor: torch.Tensor) -> set[int]:
    return {storage_key(part) for part in parts(tensor)}
