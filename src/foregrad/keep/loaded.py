"""Loaded: what `fg.load` gives, a function that runs the programs of a file."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.errors import GuardError
from foregrad.runtime.miss import MISS
from foregrad.words.generated import Generated, generated_of
from foregrad.words.progress import Part, Timings


@dataclass(frozen=True)
class LoadedCapture:
    """A program of a file: its listing, why it was captured, and how long that took then."""

    reason: str
    listing: str
    signature: dict[str, Any]
    timings: Timings

    def __str__(self) -> str:
        return self.listing


class Loaded:
    """A function that runs the programs of a file on `state`: the modules, optimizers and tensors that it works on.

    The program that was captured last is made at once, and those before it when a call is for none that was made.
    """

    def __init__(
        self,
        about: dict[str, Any],
        makers: Sequence[Callable[[], Callable[..., Any]]],
        state: tuple[Any, ...],
        source: str,
        is_bare: bool,
    ) -> None:
        self.name: str = about["name"]
        self.__name__ = self.name
        self.kind: str = about["kind"]
        self.about = about
        self.state = state
        self.source = source  # the file
        self.is_bare = is_bare  # whether its state is that in the file
        self._left = list(makers)
        self._calls: tuple[Callable[..., Any], ...] = ()  # of the last captures, the latest first
        self._lock = threading.Lock()
        self._make_one_more(0)
        self.captures = tuple(
            LoadedCapture(
                str(c["reason"]), str(c["program"]), c["signature"], Timings([Part(*p) for p in c["timings"]])
            )
            for c in about["captures"]
        )

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        num_tried = 0
        while num_tried < len(self._calls) or self._make_one_more(num_tried):
            result = self._calls[num_tried](args, kwargs)
            if result is not MISS:
                return result
            num_tried += 1
        raise GuardError(self._why(args, kwargs))

    def _make_one_more(self, num_known: int) -> bool:
        """Make the next program, unless another thread has; whether there is one."""
        with self._lock:
            if len(self._calls) == num_known and self._left:
                self._calls = (*self._calls, self._left[-1]())
                self._left.pop()
            return len(self._calls) > num_known

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The tensors of the modules, by the names that they have there."""
        found: dict[str, torch.Tensor] = {}
        for one in self.state:
            if isinstance(one, torch.nn.Module):
                found |= one.state_dict()
        return found

    def _why(self, args: Any, kwargs: Any) -> str:
        lines = []
        for number, (call, capture) in enumerate(zip(reversed(self._calls), self.captures, strict=True), 1):
            lines.append(f"  program {number} ({capture.reason}): {first_miss(call, args, kwargs)}")
        what = f"{self.name} was loaded from a file, whose programs were made for other calls:\n" + "\n".join(lines)
        return f"{what}\nCall it as it was called before it was saved, or save it again after such a call."

    def __repr__(self) -> str:
        return f"<Loaded {self.kind} {self.name}: {len(self.captures)} programs>"


_MISS = re.compile(r"^( *)if (.*): return MISS.*$", re.MULTILINE)


def first_miss(call: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """The first check of a call that fails, as it is written there: the call is run once more up to it."""
    found = generated_of(call)
    assert found is not None
    conditions: list[str] = []

    def spoken(match: re.Match[str]) -> str:
        conditions.append(match[2])
        return f"{match[1]}if {match[2]}: return MISS, {len(conditions) - 1}"

    text = _MISS.sub(spoken, found.text)
    result = Generated(found.name, text, found.namespace, found.recipes).load()(args, kwargs)
    if isinstance(result, tuple) and len(result) == 2 and result[0] is MISS:
        condition = conditions[result[1]]
        return next((words for pattern, words in _WORDS.items() if pattern in condition), condition)
    return "something that it reads is not there"


#: What checks are about, for those whose text says little.
_WORDS = {
    "tensors_are_same": "a tensor has another shape, layout, dtype, device or requires_grad",
    "state_is_same": "a mode differs: gradients, autocast, the default dtype or the number of threads",
    "overlap_is_same": "tensors share memory otherwise",
    "len(args)": "the number of arguments differs",
}
