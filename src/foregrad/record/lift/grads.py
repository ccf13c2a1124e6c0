"""Grads: the `.grad` of an input is an input of its own, lifted when Python or the engine first asks for it.

The ghost holds the ghost of that gradient, so what the function does to it (reading, writing, assigning, `backward()`)
happens to ghosts as it would to real tensors. What is left for after the call is to assign the gradients that changed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.history import grad_of
from foregrad.record.ghosts.sparse import OldSparseGrad
from foregrad.record.lift.input_hooks import InputHooks
from foregrad.record.lift.inputs import Inputs, Lifted
from foregrad.record.lift.outer_history import Beyond
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.origins import where
from foregrad.record.recorder import Recorder
from foregrad.record.user_objects import Held
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.fake_tensors import FakeTensor

Input = Lifted | Outer

REPLACED: Any = object()  # the .grad on entry, where the function assigns another one without a look at it


class Grads:
    """The gradients that inputs hold on entry, as far as the function has asked for them."""

    def __init__(self, recorder: Recorder, inputs: Inputs, objects: Held) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._nodes: list[Any] = []  # accumulators of the ghosts: the hooks on them live as long as they do
        self._handles: list[
            tuple[Any, Any]
        ] = []  # accumulators of real leaves, and hooks on them, while the function runs
        self._thread = threading.get_ident()
        self.on_entry: dict[Input, Any] = {}  # the ghost of the .grad, None, or `REPLACED`
        self.accumulated: set[Input] = set()  # inputs to which `backward()` inside the function adds
        self.is_nested = False  # whether a backward, which is recorded, runs another one that reaches inputs
        self.beyond = Beyond(recorder, inputs)
        self.hooks = InputHooks(recorder, self.beyond, objects)
        inputs.on_lift = self.watch

    def watch(self, lifted: Input) -> None:
        """Be told before the engine adds to the .grad of a ghost."""
        self.hooks.lifted(lifted)
        leaf = lifted.slot if lifted.slot is not None else lifted.ghost
        if not leaf.requires_grad or not leaf.is_leaf or leaf.is_inference():
            return
        node = lifted.edge.node if isinstance(lifted, Outer) and lifted.edge is not None else _accumulator(leaf)
        if node is None:  # a view made under no_grad gets no gradient
            return
        me, it = weakref.ref(self), weakref.ref(lifted)  # the engine's nodes are nothing that Python can collect

        def before(arrived: Any) -> Any:
            grads, found = me(), it()
            if grads is None or found is None or grads.hooks.is_collecting:
                return None
            with no_function_modes():
                return grads._accumulates(found, arrived)

        node.register_prehook(before)
        self._nodes.append(node)
        if isinstance(lifted, Lifted) and lifted.is_leaf and not self._recorder.phase:
            self._redirect(lifted, node)

    def _redirect(self, lifted: Lifted, node: Any) -> None:
        """What the engine would add to the .grad of a real leaf is added to its ghost's: code that torch's modes do not
        see, as in an extension, may have differentiated with respect to the real one."""
        real = lifted.real
        if real is None or isinstance(real, FakeTensor) or not real.requires_grad:
            return
        me, it = weakref.ref(self), weakref.ref(lifted)

        def move(arrived: Any) -> Any:
            grads, found = me(), it()
            if grads is None or found is None or threading.get_ident() != grads._thread:
                return None
            with no_function_modes():
                grads._accumulates(found, arrived)
                node(*arrived)
            return tuple(None for _ in arrived)

        with no_dispatch_modes():
            accumulator = _accumulator(real)
        if accumulator is not None:
            self._handles.append((accumulator, accumulator.register_prehook(move)))

    @contextmanager
    def collected(self, slots: Sequence[Any], reals: Sequence[Any]) -> Iterator[list[torch.Tensor | None]]:
        """While the engine adds to the .grad of the slots, which are leaves; gives what has arrived there, and leaves
        them as they were. Where a backward runs another one the engine tells in no other way what arrives."""
        found = [slot if isinstance(slot, torch.Tensor) else getattr(slot.node, "variable", None) for slot in slots]
        leaves = [leaf for leaf in found if leaf is not None]
        if len(leaves) < len(slots):
            raise self._refusal(
                "a backward that runs another one, as a reentrant checkpoint does, beside inputs that share memory",
                "Pass copies.",
            )
        before, arrived = [leaf.grad for leaf in leaves], list[torch.Tensor | None]()
        nodes = [_accumulator(real) for real in reals if real is not None and real.requires_grad and real.is_leaf]
        handles = [node.register_prehook(self._refuse_real) for node in nodes if node is not None]
        for leaf in leaves:
            leaf.grad = None
        self.hooks.is_collecting = True
        try:
            yield arrived
            arrived += [leaf.grad for leaf in leaves]
        finally:
            self.hooks.is_collecting = False
            for handle in handles:
                handle.remove()
            for leaf, grad in zip(leaves, before, strict=True):
                leaf.grad = grad

    def _refuse_real(self, _: Any) -> None:
        raise self._refusal(
            "a backward that runs another one reaches a tensor which code outside of torch's modes has used",
            "Run this part without foregrad.",
        )

    def _accumulates(self, lifted: Input, arrived: Any) -> Any:
        """The engine is about to add to the .grad of a ghost, or of what stands behind an input that is no leaf; gives
        what it is to add there instead, if that is something else."""
        self.is_nested = self.is_nested or self._recorder.phase > 0
        if not lifted.ghost.is_leaf:
            if self._recorder.phase or isinstance(lifted, Outer):
                raise self._refusal(
                    f"a backward inside the function or a backward reaches an input {lifted.spec} that is no leaf",
                    "Pass a leaf, or run this part outside.",
                )
            self.beyond.arrive(lifted, arrived[0], list(self.on_entry))
            return (None,)
        self.open(lifted)
        self.accumulated.add(lifted)
        return None

    def open_retained(self, tensors: Sequence[torch.Tensor]) -> None:
        """The engine is about to run, and to set the .grad of tensors that are no leaves."""
        if not self._recorder.phase:
            for lifted in filter(None, map(self._inputs.of_ghost, tensors)):
                self.open(lifted)

    def open(self, lifted: Input) -> None:
        """Give a ghost the .grad that the real tensor has: from here on the program depends on it."""
        if self._recorder.phase:
            raise self._refusal(
                f"a backward uses the .grad of an input {lifted.spec} of the function",
                "Use it in the function itself, or outside.",
            )
        if lifted in self.on_entry or lifted.real is None:
            return
        self.beyond.check([lifted])
        real = grad_of(lifted.real)
        with no_function_modes():
            is_sparse = real is not None and real.layout is torch.sparse_coo
            lifted.ghost.grad = (
                real if real is None else OldSparseGrad.of(real) if is_sparse else self._inputs.lift(real)
            )
            self.on_entry[lifted] = grad_of(lifted.ghost)

    def replace(self, lifted: Input) -> None:
        """The function is about to assign the .grad of an input."""
        if self._recorder.phase:
            self.open(lifted)
        if lifted not in self.on_entry:
            self.beyond.check([lifted])
            self.on_entry[lifted] = REPLACED

    def finish(self) -> None:
        """The function has returned or raised: real leaves are as they were."""
        for _, handle in self._handles:
            handle.remove()
        self._handles = []

    def expected_hooks(self) -> dict[Input, tuple[Any, ...]]:
        """Inputs that a gradient inside the function passes, and the hooks that they had on entry."""
        return {one: self.hooks.on_entry.get(one, ()) for one in (*self.accumulated, *self.beyond.targets)}

    def assumed(self) -> tuple[tuple[Input, Input | OldSparseGrad | None], ...]:
        """Inputs whose .grad on entry matters, and the input that it is, or None; `OldSparseGrad` if it is sparse."""
        entered = self._inputs.entered
        known = [(lifted, grad) for lifted, grad in self.on_entry.items() if grad is not REPLACED]
        return tuple(
            (lifted, entered(g) if g is not None and type(g) is not OldSparseGrad else g) for lifted, g in known
        )

    def changes(self, seen: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor | None]]:
        """Which of these tensors, and of the inputs, have another .grad than on entry; a gradient may have one too."""
        before = {id(lifted.ghost): grad for lifted, grad in self.on_entry.items()}
        found: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}
        waiting = [*seen, *(lifted.ghost for lifted in self.on_entry)]
        while waiting:
            tensor = waiting.pop()
            grad = grad_of(tensor)
            if grad is not before.get(id(tensor)) and id(tensor) not in found:
                found[id(tensor)] = (tensor, grad)
                waiting += [] if grad is None else [grad]
        return list(found.values())

    def _refusal(self, what: str, instead: str) -> CaptureError:
        return CaptureError(f"{what}.\n{where(self._recorder.module)}\n{instead}")


def _accumulator(leaf: torch.Tensor) -> Any:
    """The engine's node that adds to the .grad of a leaf."""
    with torch.enable_grad():
        view = leaf.view_as(leaf)
        if view.grad_fn is None:  # inside an op that has turned autograd off
            with torch.inference_mode(False):
                view = leaf.view_as(leaf)
    assert view.grad_fn is not None
    return view.grad_fn.next_functions[0][0]
