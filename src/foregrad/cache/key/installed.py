"""Installed: every distribution that Python can import, by the digests that its installer has written down.

Which of them a call depends on is not asked: code of a library may reach any other one. An upgrade costs one capture,
after which the program's own key finds what was compiled.
"""

from __future__ import annotations

import hashlib
import os
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from foregrad.cache.key.ingredients import Ingredient


@dataclass(frozen=True)
class _Distribution:
    name: str  # and version
    digest: str
    tops: frozenset[str]  # folders and files of it in the folder that it is installed in


def installed() -> Ingredient:
    """All distributions by name, version and the digests of their files; those that are installed to be edited are
    looked at as the user's own code is."""
    found = sorted((one.name, one.digest) for one in _distributions())
    return Ingredient.of("installed distributions", repr(found), " ".join(name for name, _ in found))


def is_installed(top: str) -> bool:
    """Whether some distribution has brought a folder or file."""
    return any(top in one.tops for one in _distributions())


@cache
def _distributions() -> tuple[_Distribution, ...]:
    """All distributions, in the folders that modules are imported from."""
    folders = dict.fromkeys(path for path in sys.path if path)
    return tuple(_read(record) for folder in folders for record in Path(folder).glob("*.dist-info/RECORD"))


def _read(record: Path) -> _Distribution:
    """One distribution, without what differs from one machine to the next."""
    lines = record.read_bytes().splitlines()
    files = sorted(line for line in lines if b",sha256=" in line and b".dist-info/" not in line and b"../" not in line)
    tops = {line.partition(b",")[0].partition(b"/")[0] for line in files}
    digest = hashlib.sha256(b"\n".join(files)).hexdigest()[:16]
    return _Distribution(record.parent.name.removesuffix(".dist-info"), digest, frozenset(map(os.fsdecode, tops)))
