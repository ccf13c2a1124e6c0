"""Installed: every distribution that Python can import, by the digests that its installer has written down.

Which of them a call depends on is not asked: code of a library may reach any other one. An upgrade costs one capture,
after which the program's own key finds what was compiled.
"""

from __future__ import annotations

import hashlib
import sys
from functools import cache
from pathlib import Path

from foregrad.keys.ingredients import Ingredient


@cache
def installed() -> Ingredient:
    """All distributions by name, version and the digests of their files; those that are installed to be edited are
    looked at as the user's own code is."""
    found = sorted((record.parent.name.removesuffix(".dist-info"), _digest(record)) for record in _records())
    shown = " ".join(name for name, _ in found)
    return Ingredient.of("installed distributions", repr(found), shown)


def _records() -> list[Path]:
    """The lists of files of all distributions, in the folders that modules are imported from."""
    folders = dict.fromkeys(path for path in sys.path if path)
    return [record for folder in folders for record in Path(folder).glob("*.dist-info/RECORD")]


def _digest(record: Path) -> str:
    """The digests of the files of one distribution, without what differs from one machine to the next."""
    lines = record.read_bytes().splitlines()
    files = sorted(line for line in lines if b",sha256=" in line and b".dist-info/" not in line and b"../" not in line)
    return hashlib.sha256(b"\n".join(files)).hexdigest()[:16]
