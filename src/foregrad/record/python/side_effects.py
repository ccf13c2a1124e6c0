"""Side effects: what a step does in Python beside its tensors and numbers, and a program would not repeat.

A counter on a module, an appended list, a changed flag, a print, a line in a log: found by looking at declared state,
and at the variables that the step reaches, before and after.
"""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.frames import telling_frame
from foregrad.record.ops import Origin
from foregrad.record.session import LOG, PRINT
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of

#: Flags that torch keeps in optimizers for itself: setting them once is enough.
_TORCHS_OWN = {"_opt_called", "_need_device_dtype_check_for_fused", "_warned_capturable_if_run_uncaptured"}
_ELSEWHERE = {*_TORCHS_OWN, "param_groups", "state"}
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
PLAIN_OR_CONTAINER = (*_PLAIN, list, set, dict, tuple)
_DEPTH = 3
_HOLD = (list, tuple, set, deque)
_OF_TORCH = "torch.__trace"  # where torch logs its own work on symbols


@dataclass(frozen=True)
class Change:
    """Something that the step changes in Python."""

    name: str
    what: str

    def __str__(self) -> str:
        return f"  {self.name} {self.what}"


class EffectHolder(Protocol):
    """Something whose entries a step may change: the attributes of an object, or one variable."""

    @property
    def name(self) -> str: ...

    def read(self) -> dict[str, Any]: ...

    def put(self, key: str, value: Any) -> None: ...


class SideEffects:
    """Objects as they were, by the names of their attributes and variables."""

    def __init__(self, holders: Iterable[EffectHolder]) -> None:
        self._holders = list(holders)
        self._before = [{k: _frozen(v) for k, v in holder.read().items()} for holder in self._holders]
        self._originals = [{k: (v, copy.copy(v)) for k, v in holder.read().items()} for holder in self._holders]
        self.calls: list[Change] = []

    def changes(self, is_recorded: Callable[[torch.Tensor], bool]) -> list[Change]:
        """What is not as it was; a recorded tensor in a list is refused."""
        found = list(self.calls)
        for holder, before in zip(self._holders, self._before, strict=True):
            now = holder.read()
            for key in dict.fromkeys([*before, *now]):
                after = _frozen(now[key]) if key in now else None
                if key in before and before[key] == after:
                    continue
                path = f"{holder.name}.{key}" if holder.name else key
                if any(map(is_recorded, tensors_in(now.get(key)))):
                    self.undo()
                    refuse_number_or_tensor(path)
                found.append(Change(path, f"was {_text(before.get(key))}, is {_text(after)}"))
        return list(dict.fromkeys(found))

    def known(self) -> frozenset[int]:
        """The ids of objects that are looked at here."""
        values = [value for originals in self._originals for value, _ in originals.values()]
        owners = [holder.owner for holder in self._holders if isinstance(holder, AttributesOf)]
        return frozenset(map(id, (*owners, *(one for value in values for one in _containers(value)))))

    def undo(self) -> None:
        """Put everything back as it was."""
        for holder, originals in zip(self._holders, self._originals, strict=True):
            for key, (value, contents) in originals.items():
                if isinstance(value, list):
                    value[:] = contents
                elif isinstance(value, (dict, set)):
                    value.clear()
                    value.update(contents)
                holder.put(key, value)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take note of prints and log lines of this thread."""

        def noted(what: str) -> None:
            origin = Origin(*telling_frame(3), "")
            if origin.code is not None:
                self.calls.append(Change(what, f"at {origin}"))

        def printed(original: Any, *args: Any, **kwargs: Any) -> None:
            noted("print")
            original(*args, **kwargs)

        def logged(original: Any, logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.name != _OF_TORCH:
                noted(f"a log line of {record.name}")
            original(logger, record)

        with PRINT.by(printed), LOG.by(logged):
            yield


@dataclass(frozen=True)
class AttributesOf:
    """Plain values and containers among the attributes of an object; tensors and modules are looked after elsewhere."""

    name: str
    owner: Any

    def read(self) -> dict[str, Any]:
        return {
            key: value
            for key, value in vars(self.owner).items()
            if key not in _ELSEWHERE and isinstance(value, PLAIN_OR_CONTAINER)
            if not (key.startswith("_") and isinstance(value, dict))
        }

    def put(self, key: str, value: Any) -> None:
        vars(self.owner)[key] = value


def _frozen(value: Any, depth: int = _DEPTH) -> Any:
    """A value that can be compared later: containers copied, objects by identity."""
    found = expression_of(value)
    if found is not None:
        return type(found.value), found.value
    if item_of(value) is not None:
        return object, id(value), "number that depends on data"
    if isinstance(value, _PLAIN):
        return type(value), value if value == value else repr(value)
    if isinstance(value, dict) and depth:
        return dict, tuple((_frozen(k, 0), _frozen(v, depth - 1)) for k, v in value.items())
    if isinstance(value, (list, tuple)) and depth:
        return type(value), tuple(_frozen(v, depth - 1) for v in value)
    if isinstance(value, (set, frozenset)) and depth:
        return set, frozenset(_frozen(v, 0) for v in value)
    return object, id(value), type(value).__name__


def _containers(value: Any, depth: int = _DEPTH) -> Iterator[Any]:
    if isinstance(value, (list, tuple, set, dict)):
        yield value
        for one in (value.values() if isinstance(value, dict) else value) if depth else ():
            yield from _containers(one, depth - 1)


def tensors_in(value: Any, depth: int = _DEPTH) -> list[torch.Tensor]:
    """Tensors in a value and in containers in it, and those of which there are numbers."""
    if isinstance(value, torch.Tensor):
        return [value]
    item = item_of(value)
    if item is not None:
        return [item.tensor]
    if isinstance(value, dict) and depth:
        return [t for v in value.values() for t in tensors_in(v, depth - 1)]
    return [t for v in value for t in tensors_in(v, depth - 1)] if isinstance(value, _HOLD) and depth else []


def refuse_number_or_tensor(path: str, line: str = "") -> None:
    raise CaptureError(
        f"the step puts a tensor into {path}, or a number that depends on data, and a program cannot do that at each "
        f"call.{line}\nReturn it, and put it there outside."
    )


def text_of(value: Any) -> str:
    """A value in a few words."""
    return _text(_frozen(value))


def _text(frozen: Any) -> str:
    if frozen is None:
        return "absent"
    kind, value, *rest = frozen
    if kind is object:
        return f"a {rest[0]}"
    if kind is dict:
        inside = ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value)
        return _cut("{" + inside + "}")
    if kind in (list, tuple, set):
        inside = ", ".join(sorted(map(_text, value)) if kind is set else map(_text, value))
        return _cut({list: f"[{inside}]", tuple: f"({inside})", set: f"{{{inside}}}"}[kind])
    return _cut(repr(value))


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."
