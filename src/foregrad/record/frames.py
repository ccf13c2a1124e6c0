"""Which line of the user's code is running."""

from __future__ import annotations

import os
import sys
from types import CodeType

import torch

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = (os.path.dirname(torch.__file__) + os.sep, _OURS, "<")
_USERS = (_OURS + "demo.py",)  # here, but a user of the library
_is_library: dict[CodeType, bool] = {}


def user_frame(depth: int) -> tuple[CodeType | None, int]:
    """The innermost frame outside torch and foregrad: its code, and the instruction that it is at."""
    frame = sys._getframe(depth)
    while frame is not None:
        if is_users(frame.f_code):
            return frame.f_code, frame.f_lasti
        frame = frame.f_back  # type: ignore[assignment]
    return None, 0


def raising_frame(error: BaseException) -> tuple[CodeType | None, int]:
    """The innermost frame outside torch and foregrad that an error went through."""
    found: tuple[CodeType | None, int] = (None, 0)
    at = error.__traceback__
    while at is not None:
        if is_users(at.tb_frame.f_code):
            found = (at.tb_frame.f_code, at.tb_lasti)
        at = at.tb_next
    return found


def is_users(code: CodeType) -> bool:
    known = _is_library.get(code)
    if known is None:
        file = code.co_filename
        known = _is_library[code] = file.startswith(_LIBRARIES) and file not in _USERS
    return not known
