"""The C++ compiler: whether there is one, and what it can do, found out once for each machine.

Inductor asks the compiler many things before it compiles anything: which vector instructions it can build for, whether
a precompiled header is still good. The answers are kept in a file, one for each compiler, torch and CPU:

    ~/.cache/foregrad/toolchain/3f0c….json       the answers
    ~/.cache/foregrad/toolchain/3f0c…/headers    precompiled headers, as Inductor lays them out
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch

from foregrad.process import children
from foregrad.process.atomic_write import write_atomically
from foregrad.process.code_files import built, count
from foregrad.process.environment import CXX
from foregrad.process.folders import code_folder, touch
from foregrad.process.forks import lock


@cache
def compiler() -> str | None:
    """The path of a C++ compiler, or None."""
    names = [CXX.value] if CXX.value else ["g++", "c++", "clang++"]
    return next((path for name in names if (path := shutil.which(name))), None)


def prepare() -> Toolchain:
    """Let Inductor know, whenever foregrad compiles, what this machine's toolchain can do: asked once, then read from a
    file."""
    with _one_at_a_time:
        return _prepared()


_one_at_a_time = lock()  # all threads have to change the same, so that the last of them puts it back


@cache
def _prepared() -> Toolchain:
    from foregrad.backends.cpp_builds import builds
    from foregrad.torch_private.cpp_builds import probe_instruction_sets
    from foregrad.torch_private.while_compiling import Tools, build_with

    path = compiler()
    if path is None:
        raise RuntimeError("there is no C++ compiler: install g++, or name one in CXX")
    toolchain = Toolchain.of(path)
    name = CXX.value or Path(path).name
    build_with(Tools(name, builds.run, toolchain.folder / "headers", toolchain.header))
    try:
        toolchain.instruction_sets = probe_instruction_sets(toolchain.probe)
    finally:
        toolchain.save()  # also where a later question has failed
    return toolchain


@dataclass
class Toolchain:
    """A compiler on a machine, and the answers that it gave."""

    identity: dict[str, str]
    answers: dict[str, Any] = field(default_factory=dict)
    instruction_sets: list[str] = field(default_factory=list)
    _is_saved: bool = True

    @classmethod
    def of(cls, compiler: str) -> Toolchain:
        made = cls(_identity(compiler))
        try:
            made.answers = json.loads(made.file.read_text())["answers"]
        except (OSError, ValueError, KeyError):
            made.answers = {}  # never written, or not by us: everything is asked again
        return made

    @property
    def name(self) -> str:
        return digest(self.identity)

    @property
    def folder(self) -> Path:
        return code_folder() / "toolchain" / self.name

    @property
    def file(self) -> Path:
        return self.folder.with_suffix(".json")

    def probe(self, question: Any, ask: Callable[[], bool]) -> bool:
        """The recorded answer to a question about the compiler, else a new one, which `save` records."""
        key = digest(question)
        if key not in self.answers:
            self.answers[key] = ask()
            self._is_saved = False
        return bool(self.answers[key])

    def header(self, question: Any, make: Callable[[], str]) -> str:
        """The path of a precompiled header, made if it is not there."""
        key = digest(question)
        path = self.answers.get(key)
        if path is not None and (found := _precompiled(path)) is not None:
            touch(found)  # not the header itself: clang would take the precompiled one for an old one
            return str(path)
        self.answers[key] = path = make()
        self._is_saved = False
        self.save()
        if (found := _precompiled(path)) is not None:
            count(found)
        return path

    def interface(self) -> Path:
        """The object file that all libraries have in common, compiled if it is not there."""
        from foregrad.torch_private.inductor import build_interface

        return built(f"interface-1-{self.name}", lambda folder: {".o": Path(build_interface(str(folder)))})

    def save(self) -> None:
        """Write new answers down, unless all are No: then it is the machine that failed, and it may recover."""
        if not self._is_saved and any(self.answers.values()):
            self._is_saved = True
            self.file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**self.identity, "answers": self.answers}, indent=1)
            write_atomically(self.file, [text.encode()])


def _precompiled(header: str) -> Path | None:
    return next((path for end in (".gch", ".pch") if (path := Path(header + end)).exists()), None)


def _identity(compiler: str) -> dict[str, str]:
    """What the answers depend on. Nothing is run for it: a compiler is known by its file."""
    binary = Path(compiler).resolve()
    return {
        "compiler": f"{binary} {_stamp(binary)}",
        "torch": f"{torch.__version__} {Path(torch.__file__).parent} {_stamp(Path(torch.version.__file__))}",
        "cpu": _cpu(),
    }


def _stamp(path: Path) -> str:
    stat = path.stat()
    return f"{stat.st_size} {stat.st_mtime_ns}"


def _cpu() -> str:
    """The CPU's model and flags."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    wanted = ("model name", "flags", "Features", "CPU part")
    return "; ".join(line for line in lines if line.startswith(wanted))


def version_text(compiler: str) -> str:
    """The first line of what the compiler says about itself."""
    said = children.run([compiler, "--version"], capture_output=True, text=True).stdout
    return said.splitlines()[0] if said else "version unknown"


def digest(value: Any) -> str:
    """A short name for a value made of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:24]
