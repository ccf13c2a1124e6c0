"""Forms: the pieces that packages are made of.

A form is some lines of a module that bind `o$n`, and an expression that reads a value back from it. The letters in
templates: `$n` a number of its own, `$v` a number that may be edited, `$e` what is inside, `$o` the object itself, as the
reader gets hold of it. `⟦a¦b⟧` is text before and after an edit. Forms nest: what one binds is what the next one holds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Takes(Enum):
    """What may be inside of a form, and when it is read."""

    NOTHING = "a number of its own"
    NUMBER = "a number, read when the module is imported"
    OBJECT = "any object, read back as it is"
    VALUE = "a number or a tensor, read when the function is called"


@dataclass(frozen=True)
class Form:
    """Lines of a module, how what is inside is read, a statement that replaces it, and files beside the module.

    A file `env:NAME` is a variable of the environment, `argv` an argument of the command.
    """

    head: str
    read: str = "$o"
    change: str = ""
    takes: Takes = Takes.OBJECT
    files: Mapping[str, str] = field(default_factory=dict)
    is_flat: bool = False  # its lines cannot stand in a function


def fill(text: str, **values: str) -> str:
    """A template with its letters replaced."""
    return re.sub(r"\$([neovd])", lambda match: values.get(match[1], match[0]), text)


_MARK = re.compile(r"⟦(?:#(\w+)#)?(.*?)¦(.*?)⟧", re.DOTALL)


def edits_in(texts: Mapping[str, str]) -> list[str]:
    """The names of the edits that texts have marks for; marks of one name are edited together."""
    names = [match[1] or match[0] for text in texts.values() for match in _MARK.finditer(text)]
    return list(dict.fromkeys(names))


def edited(text: str, edit: str | None) -> str:
    """A text without marks: as it was, but for one edit."""
    return _MARK.sub(lambda match: match[3] if edit is not None and edit in (match[1], match[0]) else match[2], text)
