"""Modules and files of foregrad that strings name exist: a moved file is found there too."""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.house.source import PACKAGE, Module, modules

NAME = re.compile(r"foregrad(\.[a-z_][a-z_0-9]*)+(\.\w+)?")
FILE = re.compile(r"([a-z_0-9]+/)*[a-z_0-9]+\.py")

#: Strings that look like a module and are none: keys of metadata, tags of values, public functions.
OTHERS = {
    "foregrad.module",
    "foregrad.parameter",
    "foregrad.namedtuple",
    "foregrad.class",
}
#: Where files lie that code is told apart by: ours, torch's, Python's and its libraries'.
FOLDERS = (PACKAGE, *Path(torch.__path__[0]).parents[0:1], Path(torch.__path__[0]), Path(os.__file__).parent)


def test_modules_in_strings_exist():
    found = [
        f"{module.file}:{line}: {text}"
        for module in modules().values()
        for line, text in strings(module)
        if NAME.fullmatch(text) and text not in OTHERS and not is_there(text)
    ]
    assert not found, "\n".join(found)


def test_files_in_strings_exist():
    found = [
        f"{module.file}:{line}: {text}"
        for module in modules().values()
        for line, text in strings(module)
        if FILE.fullmatch(text) and not any((folder / text).exists() for folder in FOLDERS)
    ]
    assert not found, "\n".join(found)


def strings(module: Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def is_there(text: str) -> bool:
    """Whether a dotted name is a module, or a name that a module binds."""
    home, _, name = text.rpartition(".")
    if text in modules():
        return True
    if home not in modules():
        return False
    return re.search(rf"\b{re.escape(name)}\b", modules()[home].path.read_text()) is not None
