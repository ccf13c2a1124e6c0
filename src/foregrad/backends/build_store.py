"""Store: what was built once is found again by its key, also by a later process.

libraries-1/3f0c…/graph.so          what was built
libraries-1/3f0c…/digests.json      of each file beside it, so that a damaged one is built again
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

_DIGESTS = "digests.json"


@dataclass(frozen=True)
class BuildStore:
    """A folder of finished folders. One comes into it by a rename, so others see all of it or nothing."""

    folder: Path

    def get(self, key: str, build: Callable[[Path], dict[str, Path]]) -> Path:
        """The folder of a key. If there is none, `build` works in a folder of its own and says which files to keep."""
        final = self.folder / key
        if _is_intact(final):
            return final
        self.folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.folder, prefix="building-") as scratch:
            made = Path(scratch) / "kept"
            _gather(build(Path(scratch)), made)
            if not _is_intact(final):  # else another process was first
                if final.exists():
                    os.rename(final, Path(scratch) / "damaged")
                _rename_unless_there(made, final)
        return final


def _gather(files: dict[str, Path], folder: Path) -> None:
    folder.mkdir()
    for name, file in files.items():
        shutil.move(file, folder / name)
    (folder / _DIGESTS).write_text(json.dumps({name: _digest(folder / name) for name in files}, indent=1))


def _is_intact(folder: Path) -> bool:
    """Whether a folder holds what was written."""
    try:
        digests = json.loads((folder / _DIGESTS).read_text())
        return bool(digests) and all(_digest(folder / name) == digest for name, digest in digests.items())
    except (OSError, ValueError, AttributeError):
        return False


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _rename_unless_there(made: Path, final: Path) -> None:
    try:
        os.rename(made, final)
    except OSError:  # another process was first
        if not _is_intact(final):
            raise
