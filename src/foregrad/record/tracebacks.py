"""Tracebacks: an error shows the user's frames, not those of what records and compiles in between."""

from __future__ import annotations

from types import TracebackType

from foregrad.core.errors import ForegradError
from foregrad.process.environment import TRACEBACK
from foregrad.process.package import FOLDER
from foregrad.record.frames import is_installed, is_ours, is_users, steps_of


def readable(error: Exception) -> Exception:
    """An error that leaves foregrad, without the frames that say nothing to the user.

    A refusal keeps the user's own frames and the innermost one of a library, and stands alone. An error that the user's
    function raises while it is recorded keeps the frames that it has in eager. What else is raised stays as it is.
    """
    if TRACEBACK.value == "full":
        return error
    steps = steps_of(error.__traceback__)
    if isinstance(error, ForegradError):
        error.__cause__, error.__suppress_context__ = None, True
        return error.with_traceback(_joined(_users(steps)))
    start = next((i for i in range(len(steps)) if _runs_the_function(steps[i:])), None)
    if start is None or (_is_ours(steps[-1]) and not isinstance(error, RuntimeError)):
        return error
    return error.with_traceback(_joined(_as_in_eager(steps[start + 1 :])))


def _users(steps: list[TracebackType]) -> list[TracebackType]:
    """The user's own frames, and below them the innermost frame of a library other than torch."""
    outside = [step for step in steps if is_users(step.tb_frame.f_code)]
    return [s for s in outside if s is outside[-1] or not is_installed(s.tb_frame.f_code)]


def _as_in_eager(steps: list[TracebackType]) -> list[TracebackType]:
    """Without our frames, and without what torch does for these when an op is recorded."""
    last = max((i for i, step in enumerate(steps) if is_users(step.tb_frame.f_code)), default=-1)
    end = next((i for i, step in enumerate(steps) if i > last and _is_ours(step) and _sees_an_op(step)), len(steps))
    return [step for step in steps[:end] if not _is_ours(step)]


def _runs_the_function(steps: list[TracebackType]) -> bool:
    """Whether the first frame calls the user's function to record it, or is what such an error went through before."""
    code = steps[0].tb_frame.f_code
    place = (code.co_filename.removeprefix(FOLDER), code.co_name)
    is_readable = place == ("api/compiled.py", "__call__") and len(steps) > 1 and not _is_ours(steps[1])
    return place == ("record/recording.py", "forward") or is_readable


def _sees_an_op(step: TracebackType) -> bool:
    return step.tb_frame.f_code.co_name in ("__torch_function__", "__torch_dispatch__")


def _is_ours(step: TracebackType) -> bool:
    return is_ours(step.tb_frame.f_code)


def _joined(steps: list[TracebackType]) -> TracebackType | None:
    following = None
    for step in reversed(steps):
        following = TracebackType(following, step.tb_frame, step.tb_lasti, step.tb_lineno)
    return following
