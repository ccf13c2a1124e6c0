"""Source: Python text that is being written, and the objects that its names stand for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from foregrad.core.generated import Check, Generated, Line, Recipe
from foregrad.core.size import VARYING


class Source:
    """Lines of a function, with the names that it uses."""

    def __init__(self, *, has_sizes: bool = False) -> None:
        self._lines: list[Line] = []
        self._indent = ""
        self._names: dict[int, str] = {}
        self.namespace: dict[str, Any] = {"math": math} if has_sizes else {}  # which formulas of sizes name
        self._recipes: dict[str, Recipe] = {}

    def line(self, text: str) -> None:
        self._lines.append(self._indent + text)

    def check(self, check: Check) -> None:
        self._lines.append(replace(check, indent=self._indent))

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self._indent += "    "
        yield
        self._indent = self._indent[:-4]

    def name(self, hint: str, value: Any) -> str:
        """A name for an object; the same object keeps its name."""
        found = self._names.get(id(value))
        if found is None:
            found = hint if hint not in self.namespace else f"{hint}_{len(self.namespace)}"
            self._names[id(value)] = found
            self.namespace[found] = value
        return found

    def made(self, hint: str, recipe: Recipe, value: Any = None) -> str:
        """A name for what a recipe makes, or has made already."""
        name = self.name(hint, recipe.make() if value is None else value)
        self._recipes[name] = recipe
        return name

    def constant(self, value: Any) -> str:
        """A plain value as text, or as a name where its text would not give it back."""
        if type(value) in (bool, int, str, type(None)) or (type(value) is float and value - value == 0.0):
            return repr(value)
        return repr(value) if isinstance(value, VARYING) else self.name("k", value)

    def load(self, name: str) -> Callable[..., Any]:
        return Generated(name, tuple(self._lines), self.namespace, self._recipes).load()
