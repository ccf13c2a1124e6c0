"""The base of inputs: what plain tensors and wrapper subclasses have in common."""

from __future__ import annotations

from typing import Any

import torch

from foregrad.core.spec import Spec


class Entered:
    """A real tensor that is an input, and the ghost that stands for it while recording."""

    __slots__ = ()

    ghost: torch.Tensor
    entry_node: Any  # grad_fn on entry
    spec: Spec

    @property
    def required_grad(self) -> bool:
        return self.spec.requires_grad

    @property
    def was_rebased(self) -> bool:
        """Whether autograd gave the tensor another history while recording."""
        return self.ghost.grad_fn is not self.entry_node
