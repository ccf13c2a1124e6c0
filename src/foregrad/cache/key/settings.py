"""Settings: what a process is set to do, beyond torch's own flags: Python, NumPy, the environment of libraries."""

from __future__ import annotations

import locale
import logging
import os
import sys
from typing import Any

import numpy as np

from foregrad.cache.key.ingredients import Ingredient


def settings() -> tuple[Ingredient, ...]:
    """Settings of Python and NumPy, by value."""
    texts = {
        "settings of Python": _python(),
        "settings of NumPy": {"errors": np.geterr(), "print options": np.get_printoptions()},
    }
    return tuple(Ingredient.of(name, _lines(values)) for name, values in texts.items())


def environment_of_libraries() -> Ingredient:
    """Variables of the environment that libraries read, by their digest alone, as some of them are secrets."""
    variables = _environment()
    return Ingredient.of("environment of libraries", repr(variables), " ".join(variables) or "none")


def _python() -> dict[str, Any]:
    found: dict[str, Any] = {
        "digits of integers": sys.get_int_max_str_digits(),
        "locale": locale.setlocale(locale.LC_ALL),
        "flags": {name: getattr(sys.flags, name) for name in ("optimize", "dev_mode", "utf8_mode", "bytes_warning")},
    }
    loggers = {"root": logging.root, **logging.root.manager.loggerDict}
    found["loggers"] = {
        name: (one.level, one.disabled, one.propagate)
        for name, one in sorted(loggers.items())
        if isinstance(one, logging.Logger)
        and (one.level or one.disabled or not one.propagate)
        and not name.startswith(_OF_TORCH)
    }
    found["logging disabled below"] = logging.root.manager.disable
    decimal = sys.modules.get("decimal")
    if decimal is not None and _context(decimal.getcontext()) != _context(decimal.DefaultContext):
        found["decimal"] = _context(decimal.getcontext())
    return found


def _context(context: Any) -> tuple[str, list[str]]:
    """How decimal numbers are computed, without the flags that say what has happened so far."""
    traps = sorted(one.__name__ for one, is_set in context.traps.items() if is_set)
    return str(context).partition(", flags")[0], traps


#: Loggers that torch sets up as its modules are loaded.
_OF_TORCH = ("torch", "c10d", "strobelight")

#: Variables that libraries read, by how they begin; and those that say where things are, or who is asking.
_OF_LIBRARIES = ("TORCH", "PYTORCH", "AOT_", "HF_", "TRANSFORMERS_", "TRITON_", "NUMPY_", "NPY_", "JAX_", "TF_")
_PLACES = ("_HOME", "_DIR", "_PATH", "_CACHE", "_FILE", "_TOKEN", "_KEY", "_ROOT", "_CONFIG", "_LOGS", "_OUT")


def _environment() -> dict[str, str]:
    names = sorted(name for name in os.environ if name.startswith(_OF_LIBRARIES))
    return {name: os.environ[name] for name in names if not name.endswith(_PLACES)}


def _lines(values: dict[str, Any]) -> str:
    return "\n".join(f"{name}: {value}" for name, value in values.items())
