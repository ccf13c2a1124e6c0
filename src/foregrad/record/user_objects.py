"""User objects: the tensors, modules and other objects of the user's that a capture holds on to.

The capture owns them, and they are freed with it. A recording, which is kept for later backwards, refers to them
weakly. What such a backward reaches for by itself belongs to the recording.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.record.python.container_arguments import ContainerArguments
from foregrad.record.python.random_numbers import Watched


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class RealTensor:
    """A real tensor, for as long as it is held."""

    tensor: torch.Tensor


@dataclass(eq=False, weakref_slot=True, slots=True)
class UserObjects:
    """What is the user's in the call that is captured."""

    watched: Watched  # what the function reads from the world, and what it changes outside
    arguments: ContainerArguments | None = None  # the copies that the function gets
    kept: tuple[Any, ...] = ()  # lists and dicts of its result that were there before
    argument_names: dict[int, str] = field(default_factory=dict)  # by the id of the tensor
    called: dict[int, torch.nn.Module] = field(default_factory=dict)  # modules, by id
    tops: dict[int, tuple[str, torch.nn.Module]] = field(default_factory=dict)  # those that others are parts of
    _tensors: list[RealTensor] = field(default_factory=list)

    def hold(self, tensor: torch.Tensor) -> weakref.ref[RealTensor]:
        """Hold a tensor; the reference finds it while it is held."""
        self._tensors.append(RealTensor(tensor))
        return weakref.ref(self._tensors[-1])


class Held:
    """The user objects of a recording: of the capture, while there is one; afterwards of later backwards."""

    def __init__(self, objects: UserObjects) -> None:
        self._objects = weakref.ref(objects)
        self._afterwards = UserObjects(Watched(objects.watched.executed))

    @property
    def is_capturing(self) -> bool:
        return self._objects() is not None

    @property
    def now(self) -> UserObjects:
        return self._objects() or self._afterwards
