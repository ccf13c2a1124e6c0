"""What this machine has, what is missing, and what that costs."""

from __future__ import annotations

import os
import platform
import stat
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from foregrad.backends import toolchain
from foregrad.cache.store.cache import Cache, without_password
from foregrad.cache.store.option_checks import named_place
from foregrad.process.folders import cache_folder, programs_folder

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
    return [python(), torch_version(), threads(), accelerator(), *compilers(), caches(), programs(), *extras()]


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
        meaning = 'programs run op by op, with eager\'s kernels; "inductor" and "aoti" cannot run'
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


def programs() -> Finding:
    """Where compiled programs are kept for later processes, and whether that can be used."""
    place = named_place() or str(programs_folder())
    if place == "off":
        return Finding("programs", "off", False, "each process traces and compiles anew; FOREGRAD_CACHE=off says so")
    shown = without_password(place)
    try:
        Cache(place)
    except (OSError, ValueError, ImportError) as error:
        return Finding("programs", shown, False, f"each process traces and compiles anew: {_first_line(error)}")
    if "://" in place:
        return Finding("programs", shown, True, "kept there for later processes, and used if signed")
    return _folder(Path(place).expanduser())


def _folder(folder: Path) -> Finding:
    existing = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    if not os.access(existing, os.W_OK | os.X_OK):
        meaning = f"nothing new is kept, so what is not there is compiled in each process: {existing} cannot be written"
        return Finding("programs", str(folder), False, meaning)
    if existing != folder:
        return Finding("programs", f"{folder}, not made yet", True, "will be yours alone, mode 700")
    mode = stat.S_IMODE(folder.stat().st_mode)
    meaning = "kept for later processes; only you can write here"
    return Finding("programs", f"{folder}, mode {mode:o}", True, meaning)


def extras() -> list[Finding]:
    """Packages that need not be there, and what is not possible without them."""
    return [_extra(*one) for one in _EXTRAS]


#: Package, extra of foregrad, and what needs it.
_EXTRAS = (
    ("cryptography", "trust", "Ed25519 keys; HMAC keys need nothing"),
    ("redis", "redis", "caches on Redis"),
    ("fsspec", "remote", "caches in buckets and at other URLs"),
)


def _extra(package: str, extra: str, use: str) -> Finding:
    if find_spec(package) is None:
        return Finding(package, "not installed", False, f"no {use}; pip install 'foregrad[{extra}]'")
    return Finding(package, version(package), True, f"for {use}")


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
