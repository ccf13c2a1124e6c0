"""Libraries: which code belongs to Python, torch or an installed distribution, and is known by a version.

Everything else is the user's: what it does is looked at. So are distributions that are installed to be edited, and
files without metadata.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import site
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch

from foregrad.process.package import FOLDER


@dataclass(frozen=True)
class SourceLibrary:
    """Where code comes from, and what says that it is the same: `numpy`, `2.3.1`."""

    name: str
    identity: str
    folders: tuple[str, ...]

    def holds(self, code: CodeType) -> bool:
        """Whether code was written there, or made there by `exec`."""
        return code.co_filename.startswith(self.folders) or code.co_filename.startswith("<")


def library_of(module: str | None) -> SourceLibrary | None:
    """The library that a module belongs to, by its name; None for the user's own code."""
    loaded = sys.modules.get(module) if module else None
    if loaded is None:
        return None
    return _library(str(module), getattr(loaded, "__file__", None))


def library_of_function(function: FunctionType) -> SourceLibrary | None:
    """The library of a function, by the module that it was defined in: `__module__` may say what it wraps."""
    library = library_of(function.__globals__.get("__name__"))
    return library if library is not None and library.holds(function.__code__) else None


def library_of_class(cls: type) -> SourceLibrary | None:
    """The library of a class that can be found there by its name; one that was made by a function is looked at."""
    library = library_of(cls.__module__)
    if library is None:
        return None
    found: Any = sys.modules[cls.__module__]
    for part in cls.__qualname__.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return library if found is cls or not cls.__flags__ & _IS_MADE_BY_PYTHON else None


#: Types without this flag are part of a program in C.
_IS_MADE_BY_PYTHON = 1 << 9


@cache
def _library(module: str, file: str | None) -> SourceLibrary | None:
    top = module.partition(".")[0]
    if top in ("torch", "functorch") and (file is None or file.startswith(_TORCH)):
        return SourceLibrary("torch", str(torch.__version__), (_TORCH,))
    if top == "foregrad" and (file is None or file.startswith(FOLDER)):
        return SourceLibrary("foregrad", "", (FOLDER,))
    if file is None:
        is_built_in = top in sys.stdlib_module_names and top != "__main__"
        return SourceLibrary("python", platform.python_version(), _STANDARD) if is_built_in else None
    if file.startswith(_INSTALLED):
        return _distribution(top)
    if file.startswith(_STANDARD) and top in sys.stdlib_module_names:
        return SourceLibrary("python", platform.python_version(), _STANDARD)
    return None


@cache
def _distribution(top: str) -> SourceLibrary | None:
    """An installed distribution: its version, and the digests of its files, which pip has written down."""
    found = _metadata_of(top)
    if found is None:
        return None
    record = found.read_text("RECORD") or ""
    lines = sorted(line for line in record.splitlines() if line.split(",")[0].endswith((".py", ".so")))
    files = hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]
    return SourceLibrary(top, f"{found.version} ({files})", _INSTALLED)


def _metadata_of(top: str) -> importlib.metadata.Distribution | None:
    """The distribution that a package belongs to: most have its name."""
    try:
        return importlib.metadata.distribution(top)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(top, ())
        return importlib.metadata.distribution(names[0]) if names else None


def _folders(*paths: str | None) -> tuple[str, ...]:
    return tuple(sorted({os.path.join(path, "") for path in paths if path}))


def place_in_library(file: str) -> str | None:
    """The folder or file that a file belongs to, in the folder of installed distributions; empty for what belongs to
    Python, torch or foregrad; None for what lies elsewhere."""
    home = next((home for home in _INSTALLED if file.startswith(home)), None)
    if home is not None:
        return os.path.relpath(file, home).partition(os.sep)[0]
    return "" if file.startswith((_TORCH, FOLDER, *_STANDARD)) else None


_PATHS = sysconfig.get_paths()
_TORCH = os.path.join(os.path.dirname(torch.__file__), "")
_INSTALLED = _folders(_PATHS["purelib"], _PATHS["platlib"], *site.getsitepackages(), site.getusersitepackages())
_STANDARD = _folders(_PATHS["stdlib"], _PATHS["platstdlib"])
