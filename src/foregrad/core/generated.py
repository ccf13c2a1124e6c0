"""Generated functions: Python that was written by foregrad, and the objects that its names stand for.

A function remembers both, so that it can be kept in a file and made again from it. Checks are values among its lines:
who leaves some out, or says which one fails, asks them and not their text.
"""

from __future__ import annotations

import hashlib
import linecache
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import MAGIC_NUMBER
from types import CodeType
from typing import Any, Protocol


class Recipe(Protocol):
    """How to make an object that cannot be looked into, such as a guard written in C++."""

    def make(self) -> Any: ...


@dataclass(frozen=True)
class Check:
    """A line that ends a call which is not for its arguments: `if a1 != 2: return MISS  # scale was 2`."""

    condition: str
    words: str = ""  # what is wrong where it holds; with `was` what it is about, such as `scale`
    was: str = ""
    looked_at: str = ""  # an expression for what is there now
    about: str = ""  # the name of the guard that it asks, or `REPLACED` or `KEPT_TOO`
    indent: str = ""

    def __str__(self) -> str:
        remark = f"{self.words} was {self.was}" if self.was else self.words
        return f"{self.indent}if {self.condition}: return MISS{f'  # {remark}' if remark else ''}"

    def returning(self, value: str) -> str:
        """The line with another result."""
        return f"{self.indent}if {self.condition}: return {value}"


Line = str | Check


@dataclass(frozen=True, eq=False)
class Generated:
    """The lines of a function, the objects that its names stand for, and for some of these how they were made."""

    name: str
    lines: tuple[Line, ...]
    namespace: Mapping[str, Any]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    bytecode: bytes = b""  # of the text, where another process has compiled it

    @cached_property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)

    def load(self) -> Callable[..., Any]:
        """Run the text, which tracebacks can show, and return the function that it defines."""
        is_compiled = self.bytecode.startswith(MAGIC_NUMBER)
        code = marshal.loads(self.bytecode[len(MAGIC_NUMBER) :]) if is_compiled else self._compile()
        lines = self.text.splitlines(keepends=True)
        linecache.cache[self._filename] = (len(self.text), None, lines, self._filename)
        scope = dict(self.namespace)
        exec(code, scope)
        function: Callable[..., Any] = scope.pop(self.name)  # else the two would hold each other
        function.generated = self  # type: ignore[attr-defined]
        return function

    def compiled(self) -> bytes:
        """The text as bytecode, for another process with this version of Python: to compile takes as long as to run."""
        return self.bytecode or MAGIC_NUMBER + marshal.dumps(self._compile())

    def _compile(self) -> CodeType:
        return compile(self.text, self._filename, "exec")

    @property
    def _filename(self) -> str:
        """What tracebacks show, and find the text by."""
        return f"<foregrad {self.name} {hashlib.sha256(self.text.encode()).hexdigest()[:8]}>"


def load_source(text: str, namespace: Mapping[str, Any], name: str) -> Callable[..., Any]:
    """The function `name` that a text defines."""
    return Generated(name, tuple(text.rstrip("\n").split("\n")), namespace).load()


def generated_of(function: Any) -> Generated | None:
    """What a function was generated from, if it was."""
    found = getattr(function, "generated", None)
    return found if isinstance(found, Generated) else None
