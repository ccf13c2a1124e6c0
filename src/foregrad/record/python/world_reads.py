"""World reads: what each call would read anew, and a capture reads once: clocks, files, entropy.

Calls of C functions are seen as they happen, and so is who asks. Entropy is refused. A file that is opened by its name
is an assumption of the program, to be checked at each call. A clock is named: most often the time is only logged.
"""

from __future__ import annotations

import _random
import builtins
import datetime
import io
import os
import random
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from foregrad.record.ops import Origin
from foregrad.record.python.clocks import CLOCK_NAMES
from foregrad.record.python.executed_code import is_for_us, is_library, is_ours, is_torchs
from foregrad.record.python.side_effects import Change
from foregrad.record.session import IO_OPEN, OPEN


@dataclass(frozen=True)
class FileRead:
    """A file that was read, and what it looked like; `seen` is None where there was none."""

    path: str
    seen: tuple[int, ...] | None

    @classmethod
    def at(cls, path: str) -> FileRead:
        try:
            found = os.stat(path)
        except OSError:
            return cls(path, None)
        return cls(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns))


@dataclass(frozen=True)
class UnrepeatableRead:
    """Something that cannot be repeated, and the line that asks for it."""

    what: str
    origin: Origin
    holder: Any = None  # the object that was asked
    before: Any = None  # its state


class Anew:
    """Takes note of what code reads from the world."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.files: dict[str, FileRead] = {}
        self.entropy: list[UnrepeatableRead] = []
        self.unseen: list[UnrepeatableRead] = []  # files of which no name is known
        self.drawn: dict[int, UnrepeatableRead] = {}  # by the id of the generator
        self.read: dict[int, UnrepeatableRead] = {}  # by the id of the open file

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Take note of files that are opened in this thread."""

        def opened(original: Any, file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            self._opens(file, mode)
            return original(file, mode, *args, **kwargs)

        with OPEN.by(opened), IO_OPEN.by(opened):
            yield

    def calls(self, frame: FrameType, function: Any) -> None:
        """A function of C is about to be called."""
        holder = getattr(function, "__self__", None)
        kind = type(holder)
        if issubclass(kind, _random.Random):
            self._draws(frame, function.__name__, holder)
        elif kind in _FILES:
            self._uses(frame, function.__name__, holder)
        elif function in _FUNCTIONS:
            what, helpers = _FUNCTIONS[function]
            origin = _asker(frame, helpers, libraries=what == _ENTROPY)
            if origin is None:
                return
            if what == _ENTROPY:
                self.entropy.append(UnrepeatableRead(what, origin))
            elif what == _UNSEEN:
                self.unseen.append(UnrepeatableRead(_name(function), origin))
            else:
                self.changes.append(Change(f"{what} ({_name(function)})", f"at {origin}"))

    def _draws(self, frame: FrameType, name: str, generator: Any) -> None:
        origin = _asker(frame, _OF_RANDOM, libraries=True)
        if origin is None:
            return
        if name == "seed" and frame.f_code is random.Random.seed.__code__ and frame.f_locals.get("a") is None:
            self.entropy.append(UnrepeatableRead(_ENTROPY, origin))
        elif name not in ("getstate", "__reduce__") and id(generator) not in self.drawn:
            what = "Python's random" if generator is _DEFAULT else f"a {type(generator).__name__}"
            self.drawn[id(generator)] = UnrepeatableRead(what, origin, generator, state_of(generator))

    def _uses(self, frame: FrameType, name: str, file: Any) -> None:
        origin = _asker(frame, _OF_FILES, libraries=False)
        if origin is not None and name in _READS and id(file) not in self.read:
            self.read[id(file)] = UnrepeatableRead(f"`{getattr(file, 'name', type(file).__name__)}`", origin, file)
        elif origin is not None and name in ("write", "writelines"):
            self.changes.append(Change("writes to a file", f"at {origin}"))

    def _opens(self, file: Any, mode: str) -> None:
        origin = _asker(sys._getframe(2), None, libraries=False)
        if origin is None or isinstance(file, int):
            return
        path = os.path.abspath(os.fsdecode(file))
        if "r" in str(mode) or "+" in str(mode):
            self.files.setdefault(path, FileRead.at(path))
        if "r" not in str(mode) or "+" in str(mode):
            self.changes.append(Change(f"writes to {path}", f"at {origin}"))


def state_of(generator: Any) -> tuple[Any, Any]:
    """Where a generator of Python's stands, also one that is being made."""
    return _random.Random.getstate(generator), getattr(generator, "gauss_next", None)


def put_state(generator: Any, state: tuple[Any, Any]) -> None:
    _random.Random.setstate(generator, state[0])
    generator.gauss_next = state[1]


def _asker(frame: FrameType | None, helpers: frozenset[str] | None, *, libraries: bool) -> Origin | None:
    """Who asks, behind helpers among libraries, or behind any library if these are None. If a library asks for itself,
    that is nobody, or this library."""
    while frame is not None:
        code, module = frame.f_code, str(frame.f_globals.get("__name__"))
        if is_ours(code):
            if not module.startswith(_BETWEEN):
                return None
        elif not is_library(code):
            return Origin(code, frame.f_lasti, "")
        elif helpers is None:
            if module.partition(".")[0] in _FOR_THEMSELVES:
                return None
        elif module.partition(".")[0] not in helpers:
            return Origin(code, frame.f_lasti, "") if libraries and not _is_for_itself(frame) else None
        frame = frame.f_back
    return None


def _is_for_itself(frame: FrameType) -> bool:
    top = str(frame.f_globals.get("__name__")).partition(".")[0]
    return is_torchs(frame.f_code) or top in sys.stdlib_module_names or is_for_us(frame)


def _name(function: Any) -> str:
    owner = function.__self__
    return f"{owner.__name__ if isinstance(owner, type) else function.__module__}.{function.__name__}"


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Where what the user calls is called on.
_BETWEEN = ("foregrad.record.session", "foregrad.record.python.clocks")

#: What opens files for its own purposes: code, lines of code, logs, names of programs.
_FOR_THEMSELVES = words(
    "importlib linecache tokenize inspect traceback warnings logging pkgutil zipimport sysconfig platform subprocess "
    "multiprocessing tempfile ctypes encodings locale gettext mimetypes ssl socket sqlite3 pdb bdb doctest unittest "
    "_pytest coverage cProfile pstats _frozen_importlib _frozen_importlib_external"
)
_DEFAULT = random.random.__self__  # type: ignore[attr-defined]  # what the functions of the module are methods of
_OF_RANDOM = words("random uuid secrets numpy")
_OF_FILES = words("pathlib json codecs numpy pickle gzip bz2 lzma zipfile csv configparser tomllib contextlib")
_OF_PATHS = words("posixpath ntpath genericpath pathlib os glob fnmatch shutil")

_ENTROPY, _CLOCK = "the system's entropy", "reads the clock"
_PATHS, _UNSEEN = "asks the file system", "reads a file"
_READS = words("read read1 readline readlines readinto readinto1 readall peek")
_FILES = frozenset(
    {io.TextIOWrapper, io.BufferedReader, io.BufferedRandom, io.FileIO, io.StringIO, io.BytesIO, io.BufferedRWPair}
)


def _functions() -> dict[Any, tuple[str, frozenset[str] | None]]:
    found: dict[Any, tuple[str, frozenset[str] | None]] = {}
    for name in CLOCK_NAMES:
        found[getattr(time, name)] = (_CLOCK, frozenset({"datetime", "_pydatetime"}))
    for function in (datetime.datetime.now, datetime.datetime.utcnow, datetime.datetime.today, datetime.date.today):
        found[function] = (_CLOCK, frozenset())
    for name in ("urandom", "getrandom"):
        if hasattr(os, name):
            found[getattr(os, name)] = (_ENTROPY, _OF_RANDOM)
    for name in ("stat", "lstat", "listdir", "scandir", "access", "getcwd", "readlink", "statvfs"):
        if hasattr(os, name):
            found[getattr(os, name)] = (_PATHS, _OF_PATHS)
    for name, module in (("open", io), ("open_code", io), ("open", os), ("read", os)):
        found[getattr(module, name)] = (_UNSEEN, None)
    found[builtins.input] = ("asks the user", frozenset())
    return found


_FUNCTIONS = _functions()
