"""Holders: why a tensor, or its memory, is alive."""

from __future__ import annotations

import gc
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, FrameType, FunctionType
from typing import Any

import torch

from foregrad.graph.nodes import Node, name_of
from foregrad.graph.order import in_order
from foregrad.graph.policy import memory_of, spec_of
from foregrad.graph.saved import saved

#: How many objects lie between a tensor and the variable from which it can be reached, at most.
_DEPTH = 10


@dataclass(frozen=True)
class Holder:
    """One reason: `variable loss in train (train.py:12)`, or `saved as self by MulBackward0, behind ...`."""

    kind: str  # "reference" to the tensor, "view" of its memory, "gradient" of a tensor, "saved" by a node
    text: str

    def __str__(self) -> str:
        return self.text


def holders(tensor: torch.Tensor) -> list[Holder]:
    """Everything found that keeps a tensor or its memory alive.

    These are variables that lead to it, other tensors of the same memory, the tensor whose `.grad` it is, and nodes of
    graphs that have saved it. It looks at every object of the process: for debugging, not for a loop.
    """
    memory = memory_of([tensor]).keys()
    others = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor) and one is not tensor]
    names = _Names(others)
    found = [Holder("reference", text) for text in names.of(tensor)]
    for other in others:
        if _node(other) is None and other.grad is tensor:
            found.append(Holder("gradient", f"the .grad of {names.first(other)}"))
        elif memory & memory_of([other]).keys():
            found.append(Holder("view", f"{names.first(other)} has the same memory"))
    roots = {node: other for other in [tensor, *others] if isinstance(node := _node(other), Node)}
    seen: set[Any] = set()
    for root, other in roots.items():
        new = [node for node in in_order([root]) if node not in seen]
        seen.update(new)
        for node in new:
            hits = [one.name for one in saved(node) if memory & one.storages.keys()]
            texts = [f"saved as {name} by {name_of(node)}, behind {names.first(other)}" for name in hits]
            found += [Holder("saved", text) for text in texts]
    return found


def _node(tensor: torch.Tensor) -> Any:
    """Its grad_fn, or None for a leaf, or torch's error for a view that may not be used any more."""
    try:
        return tensor.grad_fn
    except RuntimeError as error:
        return error


class _Step:
    """An object that leads to the one that was asked for, and how. No other object of the search refers to it."""

    __slots__ = ("path", "target")

    def __init__(self, target: Any, path: str) -> None:
        self.target, self.path = target, path


class _Names:
    """Names of objects, as a user knows them: from a variable of a running function or of a module."""

    def __init__(self, hidden: Any) -> None:
        self._hidden = hidden  # a list of ours, which refers to all tensors
        self._variables: dict[int, list[str]] = {}
        for frame in sys._current_frames().values():
            self._read(frame)

    def first(self, tensor: torch.Tensor) -> str:
        return next(self.of(tensor), f"a tensor {spec_of(tensor)} without a name")

    def of(self, target: Any) -> Iterator[str]:
        """The shortest ways to reach an object; none is longer than the first that is found."""
        steps, seen, found = [_Step(target, "")], {id(target)}, False
        for _ in range(_DEPTH):
            for step in steps:
                for name in self._variables.get(id(step.target), ()):
                    found = True
                    yield name.format(_as_written(step.path))
            if found or not steps:
                return
            steps = list(self._before(steps, seen))

    def _before(self, steps: list[_Step], seen: set[int]) -> Iterator[_Step]:
        """One step further from what was asked for."""
        paths = {id(step.target): step.path for step in steps}
        for referrer in gc.get_referrers(*(step.target for step in steps)):
            if id(referrer) in seen or referrer is self._hidden or isinstance(referrer, _Step | FrameType):
                continue
            seen.add(id(referrer))
            for way, target in _ways(referrer, paths):
                yield _Step(referrer, way + paths[target])

    def _read(self, frame: FrameType | None) -> None:
        """Note the variables of a running function, of those that called it, and of their modules."""
        while frame is not None:
            code = frame.f_code
            if frame.f_globals.get("__name__") != __name__:
                where = f"in {code.co_name} ({code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
                self._note(_locals(frame).items(), where)
            frame = frame.f_back
        for name, module in list(sys.modules.items()):
            if module is not None:
                self._note(getattr(module, "__dict__", {}).items(), f"of module {name}")

    def _note(self, variables: Iterable[tuple[str, Any]], where: str) -> None:
        for name, value in list(variables):
            text = f"variable {name}{{}} {where}"
            if not name.startswith("__") and text not in self._variables.setdefault(id(value), []):
                self._variables[id(value)].append(text)


def _locals(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame. Python 3.11 keeps a dict of what it has shown, which would hold on to the tensors."""
    shown = frame.f_locals
    variables = dict(shown)
    if isinstance(shown, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        shown.clear()
    return variables


def _ways(referrer: Any, wanted: dict[int, str]) -> Iterator[tuple[str, int]]:
    """How an object leads to some others: as an item or an attribute."""
    if isinstance(referrer, dict):
        items: Iterable[tuple[str, Any]] = [(f"[{key!r}]", value) for key, value in referrer.items()]
    elif isinstance(referrer, list | tuple | set | frozenset):
        items = [(f"[{place}]", value) for place, value in enumerate(referrer)]
    elif isinstance(referrer, CellType):
        items = [("", referrer.cell_contents)]
    elif isinstance(referrer, FunctionType):
        cells = zip(referrer.__code__.co_freevars, referrer.__closure__ or ())
        items = [(f" closes over {name}", cell) for name, cell in cells]
        items += [("", referrer.__closure__), ("", referrer.__defaults__), ("", referrer.__dict__)]
    else:
        attributes = getattr(referrer, "__dict__", {})
        items = [(".__dict__", attributes)]
        items += [(f".{name}", value) for name, value in attributes.items()] if isinstance(attributes, dict) else []
    for way, value in items:
        if id(value) in wanted:
            yield way, id(value)


def _as_written(path: str) -> str:
    """`.__dict__['fc']._parameters['weight']` is `.fc.weight`, and `._modules['0']` is `[0]`."""
    path = re.sub(r"\.__dict__\['(\w+)'\]", r".\1", path)
    path = re.sub(r"\._modules\['(\d+)'\]", r"[\1]", path)
    return re.sub(r"\._(?:parameters|buffers|modules)\['(\w+)'\]", r".\1", path)
