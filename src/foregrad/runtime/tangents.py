"""Tangents: which backward the gradients that arrive ask for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from foregrad.core.spec import Spec
from foregrad.torch_private.transforms import is_transformed

if TYPE_CHECKING:
    from foregrad.record.recording import Layouts


@dataclass(frozen=True)
class Tangents:
    """The layouts that tangents usually have, and whether code is compiled for others: a copy may be made sooner."""

    usual: Layouts
    is_compiled: bool

    def layouts(
        self, tangents: Sequence[Any], strides: Callable[[torch.Tensor, int], tuple[int, ...]] = lambda t, _: t.stride()
    ) -> Layouts:
        """The layouts of tangents, None for those that are absent; what is to be copied has the usual one."""
        return tuple(
            None if t is None else usual if self._is_copied(t, usual) else strides(t, place)
            for place, (t, usual) in enumerate(zip(tangents, self.usual, strict=True))
        )

    def copied(self, tangents: Sequence[Any]) -> Layouts:
        """The layouts of tangents that are all copied to the usual ones."""
        return tuple(None if t is None else usual for t, usual in zip(tangents, self.usual, strict=True))

    def _is_copied(self, tangent: torch.Tensor, usual: Any) -> bool:
        """Whether a tangent stands for several, or is sooner copied: it has gaps, repeats elements, or differs only in
        strides that are never taken."""
        if is_transformed(tangent) or not self.is_compiled:
            return is_transformed(tangent)
        spec = Spec.of(tangent)
        differing = [n for n, a, b in zip(spec.shape, spec.stride, usual, strict=True) if a != b]
        return not spec.is_dense or all(n == 1 for n in differing)


class HasBackwards(Protocol):
    """A stage, compiled or kept."""

    def backward(self, layouts: Layouts, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class Asked:
    """Gives the code of a backward, which is compiled when it is first asked for."""

    stage: HasBackwards
    layouts: Layouts

    def __call__(self) -> Callable[..., tuple[Any, ...]]:
        run: Callable[..., tuple[Any, ...]] = self.stage.backward(self.layouts).run
        return run
