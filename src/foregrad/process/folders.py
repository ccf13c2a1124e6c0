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

#: What changes when entries of old and new versions of foregrad could not read each other.
VERSION = 1

#: What a folder of entries holds at most if nobody says otherwise; this user's together with all compiled code.
MAX_BYTES = 10 * 10**9

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


def programs_folder() -> Path:
    """Where compiled programs are kept if nobody says otherwise."""
    return cache_folder() / "programs"


def code_folder(part: str = "") -> Path:
    """Where code is kept that later processes load: `cache_folder`, or a part of it, if nobody else can write there.
    Else a folder of this process alone, and one line of the log that says why."""
    root = _made(cache_folder())
    return _made(root / part) if part else root


def build_folder() -> Path:
    """Where compilers work, and keep what they may want again until the machine starts anew. It is private as well."""
    return _made(_build_folder())


def code_folders() -> tuple[Path, ...]:
    """All folders with compiled code of this user, also those of older versions. What else lies beside them, where
    `FOREGRAD_CACHE_DIR` names a folder that is not foregrad's alone, is not."""
    parts = {cache_folder(): ("code-[12]", f"toolchain/{'[0-9a-f]' * 24}"), _build_folder(): ("inductor", "building")}
    homes = [home for home in parts if why_exposed(home) is None]
    return tuple(folder for home in homes for part in parts[home] for folder in sorted(home.glob(part)))


def touch(path: Path) -> None:
    """Note that a file is used now."""
    try:
        os.utime(path)
    except OSError as error:  # evicted just now, or the folder cannot be written
        log.debug("the time of use is not noted: %s", error)


def _build_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"foregrad-{os.geteuid()}"


def _made(folder: Path) -> Path:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return _private(folder)


@cache
def _private(folder: Path) -> Path:
    """A folder that only this user can write: this one if it is, else a new one of this process."""
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
