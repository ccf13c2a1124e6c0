"""What this machine has, what is missing, and what that costs."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import torch

from foregrad.backends import toolchain
from foregrad.words.folders import cache_folder

TESTED_TORCH = "2.13"


@dataclass(frozen=True)
class Finding:
    """One fact about this machine and what follows from it."""

    name: str
    value: str
    is_fine: bool
    meaning: str


def examine() -> list[Finding]:
    """What `foregrad doctor` prints, as data."""
    return [python(), torch_version(), threads(), accelerator(), *compilers(), caches()]


def python() -> Finding:
    return Finding("Python", platform.python_version(), True, "")


def torch_version() -> Finding:
    is_tested = torch.__version__.split("+")[0].rpartition(".")[0] == TESTED_TORCH
    meaning = "" if is_tested else f"tested with torch {TESTED_TORCH}, whose private parts it uses"
    return Finding("torch", torch.__version__, is_tested, meaning)


def threads() -> Finding:
    meaning = "inside an op; capture and the code between ops use one"
    return Finding("threads", str(torch.get_num_threads()), True, meaning)


def accelerator() -> Finding:
    if not torch.accelerator.is_available():
        return Finding("accelerator", "none", True, "everything runs on the CPU")
    device = str(torch.accelerator.current_accelerator())
    return Finding("accelerator", device, False, "foregrad is tested on the CPU only")


def compilers() -> list[Finding]:
    """The C++ compiler, and what it can build for: found out now if it never was, which takes seconds."""
    found = toolchain.compiler()
    if found is None:
        meaning = 'backend="eager" needs none; "inductor" and "aoti" cannot run'
        return [Finding("C++ compiler", "none", False, meaning)]
    best = next(iter(toolchain.prepare().instruction_sets), None)
    meaning = 'used by backend="inductor" and "aoti", not by "eager"'
    return [
        Finding("C++ compiler", f"{found}, {toolchain.version_text(found)}", True, meaning),
        Finding(
            "vector instructions", best or "none", best is not None, "" if best else "loops run one value at a time"
        ),
    ]


def caches() -> Finding:
    folder = cache_folder()
    files = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    size = sum(path.stat().st_size for path in files) / 1e6
    meaning = "precompiled headers and libraries; FOREGRAD_CACHE_DIR moves it"
    return Finding("cache", f"{folder}, {size:.0f} MB", True, meaning)
