"""The autograd function around two generated halves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.torch_private.autograd import node_class
from foregrad.torch_private.autograd_engine import apply_of
from foregrad.torch_private.native_code import hide_from_dynamo


@dataclass(frozen=True, eq=False)
class AutogradFunction:
    """A `torch.autograd.Function` of generated functions."""

    name: str
    forward: Callable[..., Any]
    backward: Callable[..., Any]

    def make(self) -> Callable[..., Any]:
        """How to call it: past the part of torch that looks for transforms, which are ruled out."""
        members = {"forward": staticmethod(self.forward), "backward": staticmethod(hide_from_dynamo(self.backward))}
        made: Any = type(self.name, (torch.autograd.Function,), members)
        made.num_references = sys.getrefcount(node_class(made))
        return apply_of(made)


def has_nodes(function: Any) -> bool:
    """Whether the autograd graph has nodes of a function that was made so: each refers to the class of all of them."""
    made = function.__self__
    return sys.getrefcount(node_class(made)) > int(made.num_references)
