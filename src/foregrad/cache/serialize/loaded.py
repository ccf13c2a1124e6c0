"""Loaded: what `fg.load` gives, a function that runs the programs of a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.core.errors import GuardError
from foregrad.core.generated import Check, generated_of
from foregrad.process.forks import lock
from foregrad.process.progress import TimedPart, Timings
from foregrad.runtime.guards.reasons import text_of
from foregrad.runtime.guards.torch_guards import SameState, SameTensors
from foregrad.runtime.sentinels import MISS


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
        how: str,
        is_bare: bool,
    ) -> None:
        self.name: str = about["name"]
        self.__name__ = self.name
        self.kind: str = about["kind"]
        self.about = about
        self.state = state
        self.source = source  # the file
        self.how = how  # whether its code is used, or it was built from data alone, and why
        self.is_bare = is_bare  # whether its state is that in the file
        self._left = list(makers)
        self._calls: tuple[Callable[..., Any], ...] = ()  # of the last captures, the latest first
        self._lock = lock()
        self._make_one_more(0)
        self.captures = tuple(
            LoadedCapture(
                str(c["reason"]), str(c["program"]), c["signature"], Timings([TimedPart(*p) for p in c["timings"]])
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
        for number, call in enumerate(reversed(self._calls), 1):
            lines.append(f"  program {number}: {first_miss(call, args, kwargs)}")
        what = f"{self.name} was loaded from a file, whose programs were made for other calls:\n" + "\n".join(lines)
        return f"{what}\nCall it as it was called before it was saved, or save it again after such a call."

    def __repr__(self) -> str:
        return f"<Loaded {self.kind} {self.name}: {len(self.captures)} programs, {self.how}>"


def first_miss(call: Callable[..., Any], args: Any, kwargs: Any) -> str:
    """The first check of a call that fails, in words: the call is run once more up to it."""
    found = generated_of(call)
    assert found is not None
    lines = [
        line.returning(f"MISS, {place}, {line.looked_at or None}") if isinstance(line, Check) else line
        for place, line in enumerate(found.lines)
    ]
    result = replace(found, lines=tuple(lines), bytecode=b"").load()(args, kwargs)
    if not (isinstance(result, tuple) and len(result) == 3 and result[0] is MISS):
        return "something that it reads is not there"
    check: Any = found.lines[result[1]]
    recipe = found.recipes.get(check.about)
    if isinstance(recipe, SameTensors):
        return recipe.why_not(result[2])
    if isinstance(recipe, SameState):
        return recipe.why_not()
    if check.was:
        now = "not there" if result[2] is MISS else text_of(result[2])
        was = f"{check.words} was {check.was}"
        return f"{was}, and differs in what is not shown" if now == check.was else f"{was}, is {now}"
    return check.words or check.condition
