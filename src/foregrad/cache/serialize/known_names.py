"""Known names: functions and types of torch, of foregrad and of Python, by name.

torch.add  ->  "torch.add"  ->  torch.add
"""

from __future__ import annotations

import importlib
import sys
from functools import cache
from types import ModuleType
from typing import Any

from foregrad.core.errors import StaleArtifact

#: Packages whose objects a file may name: they are imported when a file is loaded. Of others only what is there.
ROOTS = ("builtins", "foregrad", "math", "operator", "torch")

#: Where to look for an object that does not say where it comes from.
_HOMES = (
    "foregrad.torch_private.dispatch",
    "foregrad.torch_private.tensors",
    "foregrad.torch_private.autograd",
    "foregrad.runtime.sentinels",
    "torch._C._VariableFunctions",
    "torch._C._nn",
    "torch._C._linalg",
    "torch._C._special",
    "torch._C._fft",
    "torch.Tensor",
    "torch._C._dynamo.guards",
    "torch._C",
    "torch",
    "math",
    "operator",
    "builtins",
)


def name_of(value: Any) -> str | None:
    """A name by which `find` gives this very object; None if it has none."""
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if isinstance(value, ModuleType):
        names = [value.__name__]
    elif isinstance(module, str) and isinstance(qualified, str):
        names = [f"{module}.{qualified}"]
    else:
        names = []
    names += [name] if (name := _index().get(id(value))) is not None else []
    names.sort(key=lambda name: name.partition(".")[0] not in ROOTS)
    return next((name for name in names if _find(name) is value), None)


def find(name: str) -> Any:
    """The object of a name."""
    found = _find(name)
    if found is None:
        raise StaleArtifact(f"{name} is not there: it was when the file was made")
    return found


def _find(name: str) -> Any:
    root, *parts = name.split(".")
    found: Any = _imported(root)
    path = root
    for part in parts:
        path = f"{path}.{part}"
        inner = getattr(found, part, None)
        found = _imported(path) if inner is None and isinstance(found, ModuleType) else inner
    return found


def _imported(name: str) -> ModuleType | None:
    if name.partition(".")[0] not in ROOTS:
        return sys.modules.get(name)
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


@cache
def _index() -> dict[int, str]:
    """The names of what the homes hold, by id; the first home counts."""
    found: dict[int, str] = {}
    for home in _HOMES:
        holder = _find(home)
        for name in dir(holder):
            value = getattr(holder, name, None)
            if value is not None and not isinstance(value, (bool, int, float, str, tuple)):
                found.setdefault(id(value), f"{home}.{name}")
    return found
