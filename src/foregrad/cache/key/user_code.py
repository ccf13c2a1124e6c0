"""User code: the whole code of every module of the user's that is loaded, whether anything in it is reached or not.

It is read from the files. What was changed since they were loaded is seen all the same, where a function or a value is
reached; this is for what no walk reaches: what a module does when it is imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from foregrad.cache.key.code_digest import code_digest
from foregrad.cache.key.ingredients import Ingredient
from foregrad.cache.key.installed import is_installed
from foregrad.cache.key.libraries import place_in_library

_known: dict[str, tuple[Any, str]] = {}  # by file: what it was like, and the digest of its code


def user_modules() -> dict[str, ModuleType]:
    """Modules that belong neither to Python, nor to torch, nor to an installed distribution."""
    found = {
        name: module
        for name, module in list(sys.modules.items())
        if issubclass(type(module), ModuleType) and not _is_librarys(name, vars(module).get("__file__"))
    }
    if found.get("__mp_main__") is found.get("__main__"):
        found.pop("__mp_main__", None)
    return found


@cache
def _is_librarys(name: str, file: Any) -> bool:
    top = name.partition(".")[0]
    is_kernel = name.endswith(".kernel") and len(top) > _LENGTH_OF_DIGEST  # that Inductor has compiled
    if top in ("torch", "functorch", "foregrad") or is_kernel or not isinstance(file, str):
        return True
    place = place_in_library(file)
    return place is not None and (not place or is_installed(place))


_LENGTH_OF_DIGEST = 40


def user_code() -> list[Ingredient]:
    """The code of each module of the user's."""
    found = []
    for name, module in user_modules().items():
        file = vars(module).get("__file__")
        if isinstance(file, str):
            found.append(Ingredient.of(f"code of {name}", _digest(name, module, file), "all of its file"))
    return found


def _digest(name: str, module: ModuleType, file: str) -> str:
    try:
        stat = Path(file).stat()
        state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
        known = _known.get(file)
        if known is None or known[0] != state:
            known = _known[file] = (state, _read(name, module, file))
    except OSError:
        return "without a file"
    return known[1]


def _read(name: str, module: ModuleType, file: str) -> str:
    if file.endswith(tuple(EXTENSION_SUFFIXES)):
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    code = _compiled(name, module, file)
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if code is None else code_digest(code)


def _compiled(name: str, module: ModuleType, file: str) -> CodeType | None:
    """The code of a module: from what Python has kept of it, else from its source."""
    spec = vars(module).get("__spec__")
    if file.endswith(".py") and spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
        try:
            return spec.loader.get_code(spec.name)
        except (ImportError, SyntaxError):
            return None
    try:
        return compile(Path(file).read_bytes(), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
