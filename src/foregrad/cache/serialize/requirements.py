"""Requirements: what compiled code needs of the machine and the software that it runs on."""

from __future__ import annotations

import platform
import sys

import torch

#: What torch calls the vector instructions of a CPU, each after those that it includes.
_INSTRUCTIONS = ("DEFAULT", "AVX2", "AVX512")


def needs(*, has_code: bool) -> dict[str, str]:
    """What a program that was made here needs; without compiled code only the ops of this torch."""
    found = {"torch": str(torch.__version__), "foregrad": foregrad_version()}
    if has_code:
        found |= {
            "machine": platform.machine(),
            "system": platform.system(),
            "python": str(sys.implementation.cache_tag),
            "instructions": torch.backends.cpu.get_cpu_capability(),
        }
    return found


def missing(needed: dict[str, str], *, with_code: bool = True) -> list[str]:
    """What is needed and is not here, one line each; without its code it needs the ops of this torch alone."""
    here = needs(has_code=True)
    asked = needed if with_code else {name: needed[name] for name in needs(has_code=False) if name in needed}
    return [
        f"it needs {name} {value}, and here is {here.get(name, 'none')}"
        for name, value in asked.items()
        if not _is_enough(name, value, here.get(name, ""))
    ]


def _is_enough(name: str, needed: str, here: str) -> bool:
    if name == "instructions" and {needed, here} <= set(_INSTRUCTIONS):
        return _INSTRUCTIONS.index(here) >= _INSTRUCTIONS.index(needed)
    return needed == here


def foregrad_version() -> str:
    """The version that is installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("foregrad")
    except PackageNotFoundError:
        return "not installed"
