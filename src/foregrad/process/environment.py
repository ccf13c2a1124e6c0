"""Environment: every variable that foregrad reads, and what each says. `docs/options.md` has the same list."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class EnvironmentVariable:
    """A variable of the environment."""

    name: str
    says: str

    @property
    def value(self) -> str:
        """What it is set to; "" if it is not set."""
        return os.environ.get(self.name, "").strip()

    @property
    def is_off(self) -> bool:
        return self.value == "off"


BACKEND = EnvironmentVariable("FOREGRAD_BACKEND", "the backend where none is named: `inductor`, `aoti` or `eager`")
WINOGRAD = EnvironmentVariable("FOREGRAD_WINOGRAD", "`off`: convolutions by torch's own kernels, never by ours")
CACHE = EnvironmentVariable("FOREGRAD_CACHE", "the cache where none is named: a path, a URL, or `off`")
CACHE_DIR = EnvironmentVariable(
    "FOREGRAD_CACHE_DIR", "the folder for all that outlives a process: programs, kernels, toolchain"
)
CACHE_KEY = EnvironmentVariable(
    "FOREGRAD_CACHE_KEY", "the key that signs what is kept, and is asked for where it is read"
)
CACHE_VERIFY = EnvironmentVariable(
    "FOREGRAD_CACHE_VERIFY", "one in how many calls found in a cache is captured again, to compare"
)
CONFIG_DIR = EnvironmentVariable("FOREGRAD_CONFIG_DIR", "the folder of your own keys and of those that you trust")
PROGRESS = EnvironmentVariable("FOREGRAD_PROGRESS", "`off`: no progress of long captures")
TRACEBACK = EnvironmentVariable("FOREGRAD_TRACEBACK", "`full`: errors show foregrad's own frames too")

#: Variables that foregrad is known by.
OWN = (BACKEND, WINOGRAD, CACHE, CACHE_DIR, CACHE_KEY, CACHE_VERIFY, CONFIG_DIR, PROGRESS, TRACEBACK)

CXX = EnvironmentVariable("CXX", "the C++ compiler")
XDG_CACHE_HOME = EnvironmentVariable("XDG_CACHE_HOME", "where users keep caches")
XDG_CONFIG_HOME = EnvironmentVariable("XDG_CONFIG_HOME", "where users keep settings")

#: Variables that others have defined.
OF_OTHERS = (CXX, XDG_CACHE_HOME, XDG_CONFIG_HOME)
