"""Environment: what every program depends on beside its own sources: software, machine, settings, backend.

There is no path in it and no index of a device, so that machines which are alike share what they keep.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import platform
import sys
from glob import glob
from pathlib import Path
from types import FunctionType
from typing import Any

import torch

from foregrad.backends.backend import Backend
from foregrad.backends.compiling import AOTI, Inductor
from foregrad.backends.eager import compile_graph
from foregrad.backends.toolchain import compiler, version_text
from foregrad.cache.key.ingredients import Ingredient, Key
from foregrad.cache.key.installed import installed
from foregrad.cache.key.libraries import library_of_function
from foregrad.cache.key.settings import environment_of_libraries, settings
from foregrad.cache.key.sources import Sources, sources_of_code
from foregrad.cache.key.user_code import user_code
from foregrad.process.package import FOLDER
from foregrad.runtime.options import Options
from foregrad.torch_private.global_state import foreign_decompositions, foreign_fakes, global_state


def environment_of_sources(options: Options, **extra: Any) -> Sources:
    """All ingredients of a call that is not captured yet which do not depend on the function: beside those of every
    program, what the Python of a capture may meet."""
    found = environment_of(options, **extra)
    return Sources(Key((*found.key.ingredients, installed(), *settings(), *user_code())), found.unsure)


def environment_of(options: Options, **extra: Any) -> Sources:
    """All ingredients of a program that do not depend on what is captured; `extra` are plain values that change the
    capture."""
    compiles = isinstance(options.backend, (Inductor, AOTI))
    found = [
        *software(),
        environment_of_libraries(),
        Ingredient.of("settings of torch", _lines(global_state())),
        _backend(options.backend),
    ]
    found += machine() if compiles else ()
    found += [Ingredient.of(f"option {name}", repr(value)) for name, value in sorted(extra.items())]
    own: dict[str, Any] = {f"pass {place}": one for place, one in enumerate(options.passes)}
    if not compiles and options.backend is not compile_graph:
        own["backend"] = options.backend
    own |= {f"decomposition of {op}": function for op, function in foreign_decompositions(_is_foreign)}
    own |= {f"fake kernel of {op}": function for op, function in foreign_fakes(_is_foreign)}
    code = sources_of_code("options: ", own)
    return Sources(Key((*found, *code.key.ingredients)), code.unsure)


@functools.cache
def software() -> tuple[Ingredient, ...]:
    """Python, torch and foregrad."""
    config = torch.__config__.show()
    build = hashlib.sha256(config.encode()).hexdigest()[:12]
    python = f"{platform.python_implementation()} {platform.python_version()}"
    optimized = f" -O{sys.flags.optimize}" if sys.flags.optimize else ""
    return (
        Ingredient.of("python", f"{python}{optimized}"),
        Ingredient.of("torch", f"torch {torch.__version__} {str(torch.version.git_version)[:12]} build {build}"),
        Ingredient.of("foregrad", own_digest()),
    )


@functools.cache
def own_digest() -> str:
    """foregrad by the bytes of its files, so that an edited checkout is another one."""
    digest = hashlib.sha256()
    for name in sorted(glob("**/*.py", root_dir=FOLDER, recursive=True)):
        with open(FOLDER + name, "rb") as file:
            digest.update(name.encode() + b"\0" + hashlib.sha256(file.read()).digest())
    return f"foregrad {digest.hexdigest()[:16]}"


@functools.cache
def machine() -> tuple[Ingredient, ...]:
    """What compiled code depends on: the compiler, and what the processor can do."""
    path = compiler()
    text = "none" if path is None else version_text(path)
    flags = _processor()
    best = torch.backends.cpu.get_cpu_capability()
    shown = "\n".join([f"{platform.system()} {platform.machine()} {best}", *flags])
    return Ingredient.of("compiler", text), Ingredient.of("instruction set", shown)


def _processor() -> list[str]:
    """The instructions that the processor has, by the names that the system gives them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return [platform.processor()]
    found = [line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))]
    return sorted({flag for flags in found for flag in flags})


def _backend(backend: Backend) -> Ingredient:
    """The backend by its name and its options; one of the user's is code."""
    if backend is compile_graph:
        return Ingredient.of("backend", "eager")
    if isinstance(backend, (Inductor, AOTI)):
        extra = [f"{one.name}={getattr(backend, one.name)!r}" for one in dataclasses.fields(backend)]
        return Ingredient.of("backend", f"{type(backend).__name__.lower()} {' '.join(extra)}")
    return Ingredient.of("backend", "the user's own")


def _is_foreign(function: Any) -> bool:
    return isinstance(function, FunctionType) and library_of_function(function) is None


def _lines(values: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in sorted(values.items()))
