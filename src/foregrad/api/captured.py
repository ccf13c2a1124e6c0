"""Captures: a captured program with the generated call that guards and runs it; made here, or found in a cache."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foregrad.cache.key.ingredients import Key
from foregrad.cache.key.sources import Sources
from foregrad.cache.serialize.cached_calls import CaptureOrigin
from foregrad.core.generated import generated_of
from foregrad.process.progress import Timings
from foregrad.record.questions import Question
from foregrad.runtime.autograd_function import has_nodes
from foregrad.runtime.sentinels import PYTHON

if TYPE_CHECKING:
    from foregrad.api.dynamic import Conditions, KeptConditions
    from foregrad.program.program import Program
    from foregrad.record.python.executed_code import Reads
    from foregrad.record.python.side_effects import Change
    from foregrad.regions.regions import Regions
    from foregrad.runtime.compiled_stage import CompiledStage
    from foregrad.runtime.guards.python_guard import PythonGuard


@dataclass(frozen=True, eq=False)
class Capture:
    """One captured program: what made it necessary, where it comes from, and its generated call."""

    reason: str
    call: Callable[[Any, Any], Any]
    description: dict[str, str]  # what was assumed, in words
    timings: Timings
    origin: CaptureOrigin
    num_nodes: int
    listing: Callable[[], str]
    record: Callable[[], CompiledStage]
    find_regions: Callable[[], tuple[Regions, ...]]
    cut: Callable[[], None]  # its programs off from the user's objects
    sources: Sources | None = None  # what it was looked for by
    program_key: Key | None = None
    conditions: Conditions | KeptConditions | None = None  # where sizes vary
    does: tuple[Change, ...] = ()  # in Python, and the program does not
    fixed: str = ""  # why its sizes do not vary, though some should
    not_kept: str = ""  # why no file can hold it: it changes what it is given, say
    numbers: tuple[str, ...] = ()  # numbers among the arguments that vary, or stay as they are, in words
    takes_numbers: bool = False  # whether some are inputs of its program
    once: tuple[str, ...] = ()  # what it changed outside itself, so that it holds for one call
    questions: tuple[Question, ...] = ()  # what Python asked of the data: it is for calls with these answers

    @property
    def stage(self) -> CompiledStage:
        """The recording with its compiled halves; one that was found without tracing is traced now."""
        return self.record()

    @property
    def program(self) -> Program:
        return self.stage.program

    @property
    def regions(self) -> tuple[Regions, ...]:
        """The regions of each half that was compiled by regions; nothing is traced for them."""
        return self.find_regions()

    @property
    def contents(self) -> str:
        """What tells its program from others; only what was captured here knows it."""
        from foregrad.cache.key.program_key import contents_digest

        assert self.program_key is not None
        return contents_digest(self.program_key)

    @property
    def python(self) -> PythonGuard:
        """What checks everything that the function read in Python."""
        generated = generated_of(self.call)
        assert generated is not None
        found: PythonGuard = generated.namespace[PYTHON]
        return found

    def let_go(self) -> None:
        """What was compiled is dropped. If no backward is still to run, its programs hold nothing of the user's any
        more, so that this is freed at once; else the garbage collector sees to it, after the backward."""
        generated = generated_of(self.call)
        run = None if generated is None else generated.namespace.get("run")
        if run is None or not has_nodes(run):
            self.cut()

    @property
    def reads(self) -> Reads:
        """By which names the function read in Python."""
        generated = generated_of(self.call)
        assert generated is not None
        recipe: Any = generated.recipes[PYTHON]
        found: Reads = recipe.reads
        return found

    @property
    def source(self) -> str:
        """The text of the generated call."""
        generated = generated_of(self.call)
        assert generated is not None
        return generated.text

    def __str__(self) -> str:
        """The listing of the program, with a line where each call of a region begins."""
        return self.listing()


class RaisedAfterEffects(Exception):
    """The function has raised an error of its own, on a way that the data have decided, after it has written to tensors
    or drawn random numbers: who runs it once more, on real tensors, gets both."""


#: So many answers to one question are captured.
MOST_ANSWERS = 16


def question_of_many(asked: tuple[Question, ...], others: Sequence[tuple[Question, ...]]) -> str | None:
    """The line of a question that has got too many answers so far, the ones before it being the same; None if none."""
    for place, question in enumerate(asked):
        before = [one.known for one in asked[:place]]
        same = [other for other in others if len(other) > place and [one.known for one in other[:place]] == before]
        if len({other[place].known for other in same if other[place].line == question.line}) > MOST_ANSWERS:
            return question.line
    return None


def warn_of_answers(name: str, line: str) -> None:
    """Say that a function will run as it is, since the data lead it elsewhere at nearly each call."""
    warnings.warn(
        f"{name} asks the data for a value that was another in more than {MOST_ANSWERS} captures; calls with new "
        f"values run without a program from now on.\n  {line}\nKeep the computation in tensors, or compile what comes "
        "before and after this line.",
        stacklevel=7,
    )


def warn_of_refusal(name: str, error: Exception) -> None:
    """Say that a function will run as it is, and why."""
    warnings.warn(f"{name} is not captured, and runs as it is for arguments like these:\n{error}", stacklevel=5)


def warn_of_python(name: str, changes: Sequence[Change], named: set[str], instead: str) -> None:
    """Say what happens at capture only, each thing once."""
    new = [change for change in changes if change.name not in named]
    if new:
        named.update(change.name for change in new)
        said = "\n".join(map(str, new))
        warnings.warn(f"{name} does in Python what its program does not repeat:\n{said}\n{instead}", stacklevel=6)


#: After as many captures a function probably depends on something that changes at each call.
MANY_CAPTURES = 8


def warn_of_many(name: str, reasons: Sequence[str], advice: str) -> None:
    """Say that a function was captured often, and why."""
    if len(reasons) == MANY_CAPTURES:
        said = "\n".join(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1))
        warnings.warn(f"{name} was captured {MANY_CAPTURES} times:\n{said}\n{advice}", stacklevel=6)


def with_another(captures: tuple[Capture, ...], made: Capture) -> tuple[Capture, ...]:
    """Captures and a new one. Of those that held for one call, the last few are enough."""
    num_too_many = len(captures) - 2 * MANY_CAPTURES if made.once else 0
    gone = [one for one in captures if one.once][: max(0, num_too_many)]
    return (*(one for one in captures if one not in gone), made)
