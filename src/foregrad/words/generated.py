"""Generated functions: Python that was written by foregrad, and the objects that its names stand for.

A function remembers both, so that it can be kept in a file and made again from it.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

_numbers = count()


class Recipe(Protocol):
    """How to make an object that cannot be looked into, such as a guard written in C++."""

    def make(self) -> Any: ...


@dataclass(frozen=True, eq=False)
class Generated:
    """The text of a function, the objects that its names stand for, and for some of these how they were made."""

    name: str
    text: str
    namespace: Mapping[str, Any]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Run the text, which tracebacks can show, and return the function that it defines."""
        filename = f"<foregrad {self.name} {next(_numbers)}>"
        linecache.cache[filename] = (len(self.text), None, self.text.splitlines(keepends=True), filename)
        scope = dict(self.namespace)
        exec(compile(self.text, filename, "exec"), scope)
        function: Callable[..., Any] = scope[self.name]
        function.generated = self  # type: ignore[attr-defined]
        return function


def load_source(text: str, namespace: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """The function `name` that a text defines."""
    return Generated(name, text, namespace).load()


def generated_of(function: Any) -> Generated | None:
    """What a function was generated from, if it was."""
    found = getattr(function, "generated", None)
    return found if isinstance(found, Generated) else None
