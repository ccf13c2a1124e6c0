"""Private: whether a file or folder can have been written by anybody else, and folders of our own."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from foregrad.process.folders import why_exposed


def why_not_private(found: os.stat_result) -> str | None:
    """Why others could have written this, None if only this user and root could."""
    if found.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (number {found.st_uid})"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"others can write it (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def check_private(folder: Path) -> None:
    """Raise PermissionError if others can put files into a folder, or another folder in its place."""
    reason = why_exposed(folder)
    if reason:
        raise PermissionError(
            f"the cache folder {folder} is not used: {reason}, and what is in it would be run.\n"
            f"Say chmod go-w {folder} if its contents are yours, or name another folder. "
            f'To share a folder with others, say fg.Cache("file://{folder}", key=...): its entries are signed then.'
        )


def make_folder(folder: Path, *, is_private: bool) -> None:
    """Make a folder, and those above it; if it is to be private, nobody else can read or write it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700 if is_private else 0o777, exist_ok=True)
