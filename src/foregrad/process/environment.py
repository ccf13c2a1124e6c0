"""Environment: every variable that foregrad reads, and what each says. `docs/options.md` has the same list."""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Variable:
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


BACKEND = Variable("FOREGRAD_BACKEND", "the backend where none is named: `inductor`, `aoti` or `eager`")
WINOGRAD = Variable("FOREGRAD_WINOGRAD", "`off`: convolutions by torch's own kernels, never by ours")
KEEP_MEMORY = Variable("FOREGRAD_KEEP_MEMORY", "`off`: malloc gives memory back after each step")
CACHE = Variable("FOREGRAD_CACHE", "the cache where none is named: a path, a URL, or `off`")
CACHE_DIR = Variable("FOREGRAD_CACHE_DIR", "the folder for all that outlives a process: programs, kernels, toolchain")
CACHE_KEY = Variable("FOREGRAD_CACHE_KEY", "the key that signs what is kept, and is asked for where it is read")
CACHE_VERIFY = Variable("FOREGRAD_CACHE_VERIFY", "one in how many calls found in a cache is captured again, to compare")
CONFIG_DIR = Variable("FOREGRAD_CONFIG_DIR", "the folder of your own keys and of those that you trust")
PROGRESS = Variable("FOREGRAD_PROGRESS", "`off`: no progress of long captures")
TRACEBACK = Variable("FOREGRAD_TRACEBACK", "`full`: errors show foregrad's own frames too")

#: Variables that foregrad is known by.
OWN = (BACKEND, WINOGRAD, KEEP_MEMORY, CACHE, CACHE_DIR, CACHE_KEY, CACHE_VERIFY, CONFIG_DIR, PROGRESS, TRACEBACK)

CXX = Variable("CXX", "the C++ compiler")
XDG_CACHE_HOME = Variable("XDG_CACHE_HOME", "where users keep caches")
XDG_CONFIG_HOME = Variable("XDG_CONFIG_HOME", "where users keep settings")
MALLOC = tuple(
    Variable(name, "how malloc keeps memory: foregrad then leaves its settings alone")
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
)

#: Variables that others have defined.
OF_OTHERS = (CXX, XDG_CACHE_HOME, XDG_CONFIG_HOME, *MALLOC)
