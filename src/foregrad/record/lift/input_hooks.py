"""Hooks: those of inputs run while the function is recorded, where a gradient inside the function passes.

w.register_hook(lambda gradient: gradient * 2)          loss.backward()     # inside: adds twice the gradient to w.grad

They belong to the real tensor, so each call must find the same ones there. A backward outside runs them itself.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from foregrad.core.errors import CaptureError
from foregrad.core.tensor_hooks import THEN, hooks_of
from foregrad.record.lift.inputs import Lifted
from foregrad.record.lift.outer_history import Beyond
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.origins import where
from foregrad.record.recorder import Recorder
from foregrad.record.user_objects import Held
from foregrad.torch_private.autograd import accumulation_hooks, gradient_hooks
from foregrad.torch_private.dispatch import no_function_modes

Hook = Callable[..., Any]


class InputHooks:
    """The hooks that inputs have on entry, and those that the function registers on them."""

    def __init__(self, recorder: Recorder, beyond: Beyond, objects: Held) -> None:
        self._recorder = recorder
        self._beyond = beyond
        self._watched: set[Lifted | Outer] = set()
        self._objects = objects
        self.is_collecting = False  # whether the engine runs for a backward outside, and adds to the .grad of ghosts
        self.on_entry: dict[Lifted | Outer, tuple[Hook, ...]] = {}
        self.registered: OrderedDict[int, tuple[Lifted, Hook]] = OrderedDict()  # by the function, by their handles

    def lifted(self, lifted: Lifted | Outer) -> None:
        """A tensor has become an input."""
        real = lifted.real
        with no_function_modes():
            if real is None or not lifted.ghost.requires_grad or not (hooks := hooks_of(real)):
                return
            self.on_entry[lifted] = hooks
            self._watch(lifted)
            if accumulation_hooks(real):
                me, it = weakref.ref(self), weakref.ref(lifted)
                lifted.ghost.register_post_accumulate_grad_hook(lambda _: _accumulated(me(), it()))

    def checked(self, lifted: Lifted | None) -> Lifted | None:
        """An input that is about to get a hook. Changes of its geometry are made anew outside, where none would be."""
        if lifted is not None and self._recorder.alias(lifted.ghost) is not lifted.alias:
            raise self._refusal(
                f"the function registers a hook on an input {lifted.spec} that it has given another geometry or data",
                "Register it before.",
            )
        return lifted

    def register(self, lifted: Lifted, hook: Hook) -> RemovableHandle:
        """The function registers a hook on an input: each call does so anew, if it has not been removed."""
        if self._beyond.has_gone_on_from(lifted):
            raise self._refusal(
                "the function registers a hook on an input from which a backward has gone on outside",
                "Register it before.",
            )
        self._watch(lifted)
        handle = RemovableHandle(self.registered)
        self.registered[handle.id] = (lifted, hook)
        return handle

    @property
    def named(self) -> list[tuple[str, Hook]]:
        """The hooks that inputs had on entry."""
        return [("a hook", hook) for hooks in self.on_entry.values() for hook in hooks if hook is not THEN]

    def _watch(self, lifted: Lifted | Outer) -> None:
        if lifted not in self._watched:
            self._watched.add(lifted)
            me, it = weakref.ref(self), weakref.ref(lifted)
            with no_function_modes():
                lifted.ghost.register_hook(lambda gradient: _passing(me(), it(), gradient))

    def passing(self, lifted: Lifted | Outer, gradient: torch.Tensor) -> torch.Tensor | None:
        """What the hooks of an input make of a gradient that passes; None if they leave it."""
        is_outside = self._recorder.phase or self.is_collecting
        if is_outside or (not lifted.is_leaf and self._beyond.is_accumulating):
            return None  # they run on the real tensor
        now = gradient
        for hook in self._hooks_of(lifted):
            result = self._checked(hook, lifted)(now)
            now = now if result is None else result
        return None if now is gradient else now

    def accumulated(self, lifted: Lifted | Outer) -> None:
        """The engine has added to the .grad of an input."""
        if not self._recorder.phase and not self.is_collecting and lifted.real is not None:
            with no_function_modes():
                hooks = list((accumulation_hooks(lifted.real) or {}).values())
            for hook in hooks:
                result = self._checked(hook, lifted)(lifted.real)  # by which code may look for what belongs to it
                if result is not None:
                    raise RuntimeError("Tensor post accumulate grad hooks should return None.")

    def _hooks_of(self, lifted: Lifted | Outer) -> list[Hook]:
        real: Any = lifted.real
        with no_function_modes():
            own = [] if real is None else list((gradient_hooks(real) or {}).values())
        return own + [hook for one, hook in self.registered.values() if one is lifted]

    def _checked(self, hook: Hook, lifted: Lifted | Outer) -> Hook:
        """A hook that is about to run. One of C, which would get hold of a tensor without data, cannot be watched."""
        if isinstance(hook, BuiltinFunctionType):
            raise self._refusal(
                f"a gradient inside the function passes an input {lifted.spec} whose hook, {hook.__qualname__}, is "
                "written in C",
                "Register a function of Python, or take the gradient outside.",
            )
        self._objects.now.watched.outside.enter(hook)
        return hook

    def _refusal(self, what: str, instead: str) -> CaptureError:
        return CaptureError(f"{what}.\n{where(self._recorder.module)}\n{instead}")


def _passing(hooks: InputHooks | None, lifted: Lifted | Outer | None, gradient: torch.Tensor) -> torch.Tensor | None:
    return None if hooks is None or lifted is None else hooks.passing(lifted, gradient)


def _accumulated(hooks: InputHooks | None, lifted: Lifted | Outer | None) -> None:
    if hooks is not None and lifted is not None:
        hooks.accumulated(lifted)
