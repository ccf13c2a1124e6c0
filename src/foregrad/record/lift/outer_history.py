"""Outer history: gradients inside the function that reach inputs with a history, where eager would go on outside.

def f(x):                           f(w.sin())
    x.square().sum().backward()     the engine goes on through `sin`, and adds to `w.grad`

A program computes what arrives at such an input, and the call goes on from there with the engine. Nothing inside the
function may depend on what that finds: this is asked of the histories at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.history import adds_to_grad_of, leads_to
from foregrad.record.lift.inputs import Inputs, Lifted
from foregrad.record.lift.wrapper_inputs import Outer
from foregrad.record.origins import where
from foregrad.record.recorder import Recorder


@dataclass(eq=False)
class Onward:
    """A run of the engine inside the function that goes on outside: from which inputs, with which gradients."""

    retain_graph: bool
    create_graph: bool
    is_grad: bool  # `torch.autograd.grad`, or `backward` to some inputs alone
    place: int = 0  # how many ops come before
    reached: list[tuple[Lifted, torch.Tensor]] = field(default_factory=list)


@dataclass(frozen=True)
class Apart:
    """Inputs that the histories of others must not lead to."""

    lifted: Lifted
    others: tuple[Lifted | Outer, ...]
    check: Callable[..., bool]


class Beyond:
    """The runs of the engine inside the function, and what they assume about the histories of inputs."""

    def __init__(self, recorder: Recorder, inputs: Inputs) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self._running: list[Onward] = []
        self._apart: dict[Lifted, set[Lifted]] = {}  # of gradients with respect to inputs
        self.targets: set[Lifted] = set()  # inputs with respect to which the function takes gradients
        self.onward: list[Onward] = []  # those that have reached such inputs

    @property
    def is_accumulating(self) -> bool:
        """Whether the engine runs, and adds what arrives to the .grad of all leaves."""
        return bool(self._running) and not self._running[-1].is_grad

    @contextmanager
    def run(self, retain_graph: bool, create_graph: bool, targets: Sequence[Any]) -> Iterator[None]:
        """While the engine runs inside the function, to targets or to all leaves."""
        self._running.append(Onward(retain_graph, create_graph, bool(targets)))
        try:
            yield
        except RuntimeError as error:
            if "invalid gradient at index" not in str(error):
                raise
            raise CaptureError(
                "a gradient inside the function passes a tensor that has got another geometry under no_grad: "
                f"{error}\n{where(self._recorder.module)}"
            ) from error
        finally:
            self._running.pop()

    def arrive(self, lifted: Lifted, gradient: torch.Tensor, opened: Sequence[Lifted | Outer]) -> None:
        """A gradient has arrived at an input that has a history; `opened` are those whose .grad the function uses."""
        if any(other.base is lifted for other in self._inputs.all):
            raise CaptureError(
                f"backward() inside the function reaches an input {lifted.spec} that is no leaf and shares memory with "
                f"another input.\n{where(self._recorder.module)}\nPass one of them, or run backward() outside."
            )
        run = self._running[-1]
        if not run.reached:
            self.onward.append(run)
        run.reached.append((lifted, gradient.clone()))
        run.place = len(self._recorder.ops)
        self.check(opened)

    @property
    def gradients(self) -> list[torch.Tensor]:
        """What the program gives for the calls to go on with."""
        return [gradient for run in self.onward for _, gradient in run.reached]

    def has_gone_on_from(self, lifted: Lifted) -> bool:
        return lifted in self._reached

    @property
    def _reached(self) -> list[Lifted]:
        return list(dict.fromkeys(lifted for run in self.onward for lifted, _ in run.reached))

    def assumed(self, opened: Sequence[Lifted | Outer]) -> list[Apart]:
        """What each call must find in the histories of its inputs."""
        wanted = tuple(lifted for lifted in opened if lifted.required_grad)
        apart = [Apart(lifted, tuple(others), leads_to) for lifted, others in self._apart.items()]
        return apart + [Apart(lifted, wanted, adds_to_grad_of) for lifted in self._reached if wanted]

    def check(self, opened: Sequence[Lifted | Outer]) -> None:
        """Refuse a function that uses a .grad to which a backward of its own adds outside."""
        for lifted in self._reached:
            for other in opened:
                if _holds(adds_to_grad_of, lifted, other):
                    raise CaptureError(
                        f"backward() inside the function reaches an input {lifted.spec} that is no leaf, and goes on "
                        f"outside to a tensor {other.spec} whose .grad is used inside too.\n"
                        f"{where(self._recorder.module)}\nCompute that input inside, or run backward() outside."
                    )

    def check_targets(self, sources: Any, targets: Sequence[Any]) -> None:
        """Refuse a gradient with respect to an input that lies behind another: part of it would come from outside."""
        wanted = [lifted for lifted in map(self._lifted, targets) if lifted is not None and lifted.required_grad]
        inputs = [one for one in self._inputs.all if one.slot is not None and not one.is_leaf]
        if self._recorder.phase:
            return
        self.targets.update(wanted)
        if not wanted or not inputs:
            return
        leaves = _leaves_of(sources)
        for lifted in (one for one in inputs if id(one.slot) in leaves):
            for other in (one for one in wanted if one is not lifted):
                if _holds(leads_to, lifted, other):
                    raise CaptureError(
                        f"a gradient inside the function, with respect to a tensor {other.spec} that lies behind an "
                        f"input {lifted.spec}.\n{where(self._recorder.module)}\nCompute that input inside, or take the "
                        "gradient outside."
                    )
                self._apart.setdefault(lifted, set()).add(other)

    def _lifted(self, target: Any) -> Lifted | None:
        tensor = target if isinstance(target, torch.Tensor) else getattr(target.node, "variable", None)
        return None if tensor is None else self._inputs.of_ghost(tensor)


def _holds(question: Callable[..., bool], lifted: Lifted, other: Lifted | Outer) -> bool:
    return lifted.real is not None and other.real is not None and question(lifted.real, other.real)


def _leaves_of(sources: Any) -> set[int]:
    """The ids of the leaves that the graph behind some tensors leads to."""
    waiting = [source.grad_fn if isinstance(source, torch.Tensor) else source.node for source in sources]
    leaves = {id(source) for source in sources}
    seen = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaves.add(id(getattr(node, "variable", None)))
        waiting += [following for following, _ in node.next_functions]
    return leaves
