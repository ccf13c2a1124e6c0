"""Compare trials of a compiled callable with eager, and call the outcome by one of four names."""

import contextlib
import functools
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from types import CodeType, FrameType
from typing import Any

from .observe import Seen, difference

Compile = Callable[[Any], Any]

SEEDS = (0, 1)
"""Each trial makes one call per seed: the first captures, the second uses the capture."""


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    REFUSED = "refused"
    EXCLUDED = "excluded"


@dataclass(frozen=True)
class Result:
    """The outcome for one op, module or architecture."""

    group: str
    name: str
    status: Status
    reason: str = ""
    num_compared: int = 0
    excluded: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Trial:
    """One sample. `start(compile)` builds fresh state and returns `call(seed)`.

    `code` is the user's Python code: the call that reuses a capture must not enter it.
    """

    label: str
    start: Callable[[Compile], Callable[[int], Seen]]
    code: CodeType
    is_close_enough: bool = False  # gradients are compared to rounding, in any layout
    seeds: tuple[int, ...] = SEEDS
    repeated: tuple[int, ...] = (1,)  # calls that a capture was made for earlier


@dataclass(frozen=True)
class Rules:
    """What a subject is allowed."""

    may_round: bool
    may_run_again: bool


@dataclass(frozen=True)
class Sweep:
    """Names to check, and the check of one name."""

    title: str
    names: Callable[[], tuple[str, ...]]
    check: Callable[[str, Compile], Iterable[Result]]


def eager(target: Any) -> Any:
    """The stand-in that shows that the harness itself is sound."""
    return target


def foregrad(target: Any) -> Any:
    import foregrad as fg

    return fg.compile(target, backend="eager")


def foregrad_dynamic(target: Any) -> Any:
    """All sizes of arguments vary, where they can."""
    import foregrad as fg

    DYNAMIC.append(fg.compile(target, backend="eager", dynamic=True))
    return DYNAMIC[-1]


DYNAMIC: list[Any] = []
"""What was compiled so, in this process."""


def foregrad_default(target: Any) -> Any:
    """With the backend that users get."""
    import foregrad as fg

    return fg.compile(target)


def foregrad_default_dynamic(target: Any) -> Any:
    """All sizes of arguments vary, where they can, with the backend that users get."""
    import foregrad as fg

    DYNAMIC.append(fg.compile(target, dynamic=True, cache=False))
    return DYNAMIC[-1]


def torch_fullgraph(target: Any) -> Any:
    """torch.compile that may not break the graph, without a compiler: what counts is what can be captured."""
    return _torch_compile(target, fullgraph=True)


def torch_default(target: Any) -> Any:
    """torch.compile as it is: where it cannot capture, it runs Python in between."""
    return _torch_compile(target, fullgraph=False)


def _torch_compile(target: Any, *, fullgraph: bool) -> Any:
    import torch

    torch._dynamo.reset()
    return torch.compile(target, backend="aot_eager", fullgraph=fullgraph)


ROUNDING = (foregrad_default, foregrad_default_dynamic, torch_fullgraph, torch_default)
"""These may round otherwise than eager, and return results in other layouts."""
MAY_RUN_AGAIN = (eager, torch_fullgraph, torch_default)
"""For these a call may enter the Python code that was captured."""


def judge(group: str, name: str, trials: Iterable[Trial], compile_fn: Compile) -> Result:
    """The first failure, else the first refusal, else passed. A target is compiled once for its trials."""
    compile_once = functools.cache(compile_fn)
    rules = Rules(compile_fn in ROUNDING, compile_fn in MAY_RUN_AGAIN)
    num_compared, excluded, refusals = 0, [], []
    for trial in trials:
        status, reason = _judge_trial(trial, compile_once, rules)
        reason = f"{trial.label}: {reason}"
        if status is Status.FAILED:
            return Result(group, name, status, reason, num_compared, tuple(excluded))
        if status is Status.EXCLUDED:
            excluded.append(reason)
        elif status is Status.REFUSED:
            refusals.append(reason)
        else:
            num_compared += 1
    if refusals:
        return Result(group, name, Status.REFUSED, refusals[0], num_compared, tuple(excluded))
    if not num_compared:
        reason = excluded[0] if excluded else "no samples"
        return Result(group, name, Status.EXCLUDED, reason, 0, tuple(excluded))
    return Result(group, name, Status.PASSED, "", num_compared, tuple(excluded))


def spread(items: Iterable[Any], count: int) -> list[tuple[int, Any]]:
    """At most `count` of the items, evenly spread, with their positions."""
    everything = list(enumerate(items))
    if len(everything) <= count:
        return everything
    return [everything[i * (len(everything) - 1) // (count - 1)] for i in range(count)]


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds} s")

    previous = signal.signal(signal.SIGALRM, stop)
    # Again and again: what the first one ends may be one of several trials.
    signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _judge_trial(trial: Trial, compile_fn: Compile, rules: Rules) -> tuple[Status, str]:
    try:
        expected, again = _calls(trial, eager), _calls(trial, eager)
    except Exception as error:
        return Status.EXCLUDED, f"eager raises {_brief(error)}"
    for one, other in zip(expected, again, strict=True):
        if found := difference(one, other):
            return Status.EXCLUDED, f"eager differs from itself: {found}"
    try:
        return _compare(trial, expected, compile_fn, rules)
    except Exception as error:
        return (Status.REFUSED if _is_refusal(error) else Status.FAILED), _brief(error)


def _compare(trial: Trial, expected: list[Seen], compile_fn: Compile, rules: Rules) -> tuple[Status, str]:
    call = trial.start(compile_fn)
    for turn, (seed, seen) in enumerate(zip(trial.seeds, expected, strict=True)):
        with _entries(trial.code) as entries:
            actual = call(seed)
        if found := difference(seen, actual, is_close_enough=trial.is_close_enough, is_rounded=rules.may_round):
            return Status.FAILED, f"call {turn + 1}: {found}"
        if turn in trial.repeated and entries and not rules.may_run_again:
            return (
                Status.FAILED,
                "not compiled: a second call with equal arguments ran the Python code again",
            )
    return Status.PASSED, ""


def _calls(trial: Trial, compile_fn: Compile) -> list[Seen]:
    call = trial.start(compile_fn)
    return [call(seed) for seed in trial.seeds]


@contextlib.contextmanager
def _entries(code: CodeType) -> Iterator[list[str]]:
    """A list that grows each time Python enters `code`."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code is code:
            entered.append(event)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(previous)


def _is_refusal(error: Exception) -> bool:
    if type(error).__module__ == "torch._dynamo.exc":
        return True
    module = sys.modules.get("foregrad")
    return module is not None and isinstance(error, module.CaptureError)


def _brief(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}"
