"""The C++ compiler: whether there is one, and what it can do, found out once for each machine."""

from __future__ import annotations

import os
import shutil
from functools import cache


@cache
def compiler() -> str | None:
    """The path of a C++ compiler, or None."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)
