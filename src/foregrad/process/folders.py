"""Folders: where foregrad keeps what outlives a process."""

from __future__ import annotations

import atexit
import grp
import logging
import os
import pwd
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from foregrad.process.environment import CACHE_DIR, CONFIG_DIR, XDG_CACHE_HOME, XDG_CONFIG_HOME

log = logging.getLogger("foregrad")

_MOST_LINKS = 40


def cache_folder() -> Path:
    """Where foregrad keeps what outlives a process: `FOREGRAD_CACHE_DIR`, else the user's cache folder."""
    if chosen := CACHE_DIR.value:
        return Path(chosen)
    return Path(XDG_CACHE_HOME.value or Path.home() / ".cache") / "foregrad"


def config_folder() -> Path:
    """Where foregrad keeps what the user has decided: `FOREGRAD_CONFIG_DIR`, else the user's configuration folder."""
    if chosen := CONFIG_DIR.value:
        return Path(chosen)
    return Path(XDG_CONFIG_HOME.value or Path.home() / ".config") / "foregrad"


def code_folder() -> Path:
    """Where code is kept that later processes load: `cache_folder`, if nobody else can write there. Else a folder of
    this process alone, and one line of the log that says why."""
    return _private(cache_folder())


def build_folder() -> Path:
    """Where compilers work, and keep what they may want again until the machine starts anew. It is private as well."""
    return _private(Path(tempfile.gettempdir()) / f"foregrad-{os.geteuid()}")


@cache
def _private(folder: Path) -> Path:
    """A folder that only this user can write: this one if it is, else a new one of this process."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    reason = why_exposed(folder)
    if reason is None:
        return folder
    log.warning(
        "compiled code is not kept for later processes: %s, so what is in %s could be anybody's. Mend that, or name a "
        "folder of your own in FOREGRAD_CACHE_DIR.",
        reason,
        folder,
    )
    own = tempfile.mkdtemp(prefix="foregrad-")
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return Path(own)


def why_exposed(folder: Path) -> str | None:
    """Why somebody else could put something into a folder, or another folder in its place; None if only this user and
    root could.

    Every folder on the way is looked at through a handle of the one before it, and every link. Where each belongs to
    this user or to root, and others can add to none, or only beside what is there (`/tmp`), nobody else can change what
    the path means: it stays as it was found.
    """
    left, handle, here, links = [*reversed(folder.absolute().parts[1:])], os.open("/", _DIRECTORY), Path("/"), 0
    try:
        while True:
            if (reason := _why_written_by_others(os.fstat(handle), here, is_last=not left)) is not None:
                return reason
            if not left:
                return None
            name = left.pop()
            found = os.stat(name, dir_fd=handle, follow_symlinks=False)
            if not _is_ours(found):
                return f"{here / name} belongs to another user (number {found.st_uid})"
            if stat.S_ISLNK(found.st_mode):
                target, links = Path(os.readlink(name, dir_fd=handle)), links + 1
                if links > _MOST_LINKS:
                    return f"{here / name} is a link that leads nowhere"
                left += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                name, here = ("/", Path("/")) if target.is_absolute() else (".", here)
            else:
                here = here.parent if name == ".." else here / name
            before, handle = handle, os.open(name, _DIRECTORY, dir_fd=handle)
            os.close(before)
    except FileNotFoundError:  # what is not there yet is made by us, in a folder that was looked at
        return None
    except NotADirectoryError:
        return f"{here} is no folder"
    finally:
        os.close(handle)


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def _why_written_by_others(found: os.stat_result, here: Path, *, is_last: bool) -> str | None:
    if not _is_ours(found):
        return f"{here} belongs to another user (number {found.st_uid})"
    is_own_group = not is_last and _is_own_group(found.st_gid)
    shared = found.st_mode & (stat.S_IWOTH if is_own_group else stat.S_IWOTH | stat.S_IWGRP)
    if shared and (is_last or not found.st_mode & stat.S_ISVTX):
        return f"others can write {here} (mode {stat.S_IMODE(found.st_mode):o})"
    return None


def _is_ours(found: os.stat_result) -> bool:
    return found.st_uid in (os.geteuid(), 0)


@cache
def _is_own_group(group: int) -> bool:
    """Whether a group is that of this user alone, as many systems make one for each user."""
    try:
        user, found = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_gid == user.pw_gid and found.gr_name == user.pw_name and {*found.gr_mem} <= {user.pw_name}
