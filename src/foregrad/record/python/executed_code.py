"""Executed: which code runs while a function is recorded, and what it can have read by name."""

from __future__ import annotations

import builtins
import cProfile
import importlib
import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType, ModuleType
from typing import Any, Protocol

import torch

from foregrad.process.package import FOLDER
from foregrad.process.process_variables import OF_THIS_PROCESS
from foregrad.record.python.names_read import Import, Names, names_in
from foregrad.torch_private.modules import TABLES

Profile = Callable[[FrameType, str, Any], Any]


@dataclass(frozen=True)
class Reads:
    """Names that were asked for while a function ran.

    `globals` are the variables of modules, by the name of the module. Of the objects that the function could reach,
    every attribute was read whose name is in `names`; all of them, if code asked by computed names.
    """

    names: frozenset[str]
    globals: tuple[tuple[str, frozenset[str]], ...]
    tables: frozenset[str]  # of torch's modules, which code outside torch went through
    executed: frozenset[str]  # functions, as `module:qualified name`
    computed: bool  # code of the user's computed names of attributes
    computed_in_libraries: bool
    tested: frozenset[str] = frozenset()  # names of sets, if all that was asked is what is in them
    looks_around: bool = False  # code asked for what differs in each process, such as `sys.modules`
    imported: frozenset[str] = frozenset()  # modules that functions import when they run, and pass on


@dataclass(frozen=True)
class Scope:
    """Variables of a module that code has read, and where they are kept."""

    variables: dict[str, Any]
    names: frozenset[str]


class Watches(Protocol):
    """Looks at what code does, as it happens."""

    def begins(self, frame: FrameType) -> None:
        """A function of Python is about to run."""

    def calls(self, frame: FrameType, function: Any) -> None:
        """A function of C is about to be called."""


class Executed:
    """Collects the code objects that run in this thread."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[CodeType, dict[str, Any]]] = {}
        self._profile: Profile | None = None
        self._earlier: Any = None
        self._thread = 0
        self._is_paused = False
        self._asked_for: set[str] = set()  # modules, by names that were computed
        self._imports_by_another_name = False
        self.watches: Watches | None = None

    def __enter__(self) -> None:
        """Take note of every function that begins, from now on."""
        earlier: Any = sys.getprofile()
        if isinstance(earlier, cProfile.Profile):  # its work is done in C: it rests meanwhile
            earlier.disable()
        self._earlier, self._thread = earlier, threading.get_ident()
        self._profile = self._both if callable(earlier) else self._note
        sys.setprofile(self._profile)

    def __exit__(self, *error: object) -> None:
        self._profile = None
        if isinstance(self._earlier, cProfile.Profile):
            sys.setprofile(None)
            self._earlier.enable()
        else:
            sys.setprofile(self._earlier)

    def pause(self) -> bool:
        """Do not look for a while: what runs is no code of the user's. Whether there is something to resume."""
        if self._profile is None or self._is_paused or threading.get_ident() != self._thread:
            return False
        sys.setprofile(None)
        self._is_paused = True
        return True

    def resume(self) -> None:
        self._is_paused = False
        sys.setprofile(self._profile)

    def _both(self, frame: FrameType, event: str, arg: Any) -> None:
        self._note(frame, event, arg)
        self._earlier(frame, event, arg)

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "call":
            code = frame.f_code
            if (
                id(code) not in self._seen
                and not is_ours(code)
                and not _is_housekeeping(frame)
                and not is_for_us(frame)
            ):
                self._seen[id(code)] = (code, frame.f_globals)
            if code is _IMPORT_MODULE:
                self._asked_for.update(_modules_asked_for(frame.f_locals))
            if self.watches is not None:
                self.watches.begins(frame)
        elif event == "c_call":
            if arg is builtins.__import__ and "__import__" not in frame.f_code.co_names:
                self._imports_by_another_name |= not is_of_python(frame.f_code)
            if self.watches is not None:
                self.watches.calls(frame, arg)

    def ran(self) -> list[tuple[CodeType, dict[str, Any]]]:
        """The code that ran, each with its globals."""
        return list(self._seen.values())

    def scopes(self) -> list[Scope]:
        """The globals that were read, by the dict that holds them."""
        found: dict[int, tuple[dict[str, Any], set[str]]] = {}
        for code, variables in self._seen.values():
            names = names_in(code)
            read = found.setdefault(id(variables), (variables, set()))[1]
            looks_at_all = names.looks_at_globals and not is_library(code)
            read.update(variables if looks_at_all else names.globals)
        for module, asked in self._imports():
            variables = vars(sys.modules[module])
            found.setdefault(id(variables), (variables, set()))[1].update(asked or ())
        return [Scope(variables, frozenset(names)) for variables, names in found.values()]

    def named(self) -> list[Scope]:
        """All globals that code outside torch names, also those that it only writes."""
        seen = [(code, variables) for code, variables in self._seen.values() if not is_torchs(code)]
        return [Scope(variables, frozenset(code.co_names)) for code, variables in seen]

    def reads(self) -> Reads:
        every = [(code, names_in(code), scope) for code, scope in self._seen.values()]
        scopes = [s for s in self.scopes() if _variables_of(str(s.variables.get("__name__"))) is s.variables]
        asked = frozenset().union(*(names.attributes | names.globals for _, names, _ in every))
        return Reads(
            names=frozenset().union(*(names.attributes for _, names, _ in every)),
            globals=tuple(sorted(((str(s.variables["__name__"]), s.names) for s in scopes), key=lambda one: one[0])),
            tables=frozenset().union(*(n.attributes for code, n, _ in every if not is_torchs(code))) & _TABLES,
            executed=frozenset(key_of(code, scope) for code, _, scope in every),
            computed=any(names.computes and not is_library(code) for code, names, _ in every),
            computed_in_libraries=any(
                names.computes and is_library(code) and not is_torchs(code) for code, names, _ in every
            ),
            tested=asked.difference(*(names.used for _, names, _ in every)),
            looks_around=self._imports_by_another_name
            or any(_looks_around(names) for code, names, _ in every if not _is_as_pythons(code)),
            imported=frozenset(module for module, names in self._imports() if names is None),
        )

    def _imports(self) -> Iterator[tuple[str, frozenset[str] | None]]:
        """Modules that an `import` inside a function gives it, and what it asks them for; None for anything."""
        yield from ((name, None) for name in self._asked_for)
        for code, scope in self._seen.values():
            names = names_in(code)
            for one in names.imports:
                for module in one.modules(str(scope.get("__package__"))):
                    if _variables_of(module) is not None:
                        yield module, None if one.escapes else names.attributes


def _variables_of(module: str) -> dict[str, Any] | None:
    found = sys.modules.get(module)
    return vars(found) if issubclass(type(found), ModuleType) else None


def _modules_asked_for(given: dict[str, Any]) -> list[str]:
    """The modules that `importlib.import_module` gives for its arguments, with all that they are in."""
    name, package = str(given["name"]), str(given["package"] or "")
    level = len(name) - len(name.lstrip("."))
    return [one for one in Import(name[level:], level, (), True).modules(package) if _variables_of(one) is not None]


def _is_as_pythons(code: CodeType) -> bool:
    """Whether code is Python's or torch's, or of a library that stands in for Python: in an import, or as `typing`."""
    stands_in = code.co_name == "find_spec" or os.path.basename(code.co_filename) == "typing_extensions.py"
    return is_of_python(code) or (stands_in and is_library(code))


def _looks_around(names: Names) -> bool:
    if names.imports_by_computed_name or names.attributes & {"f_globals", "f_locals"}:
        return True
    modules = names.globals.union(*((one.module, *one.names) for one in names.imports))
    return any(not names.attributes.isdisjoint(_looked_at(home)) for home in modules & OF_THIS_PROCESS.keys())


def _looked_at(home: str) -> frozenset[str]:
    return OF_THIS_PROCESS[home] - {"stdin", "stdout", "stderr"}  # to write there


def key_of(code: CodeType, variables: dict[str, Any]) -> str:
    """A function by the module that its globals are of, and its name there."""
    return f"{variables.get('__name__')}:{code.co_qualname}"


def _folder(path: str) -> str:
    return os.path.join(path, "")


_USERS = (FOLDER + "cli/demo.py",)
_TORCH = _folder(os.path.dirname(torch.__file__))
_LIBRARIES = tuple(
    {
        _folder(path)
        for name, path in sysconfig.get_paths().items()
        if name in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)

_INSTALLED = tuple(_folder(sysconfig.get_paths()[name]) for name in ("purelib", "platlib"))

_IMPORT_MODULE = importlib.import_module.__code__

_TABLES = frozenset(TABLES)

#: How torch finds a mode, and takes ops to it.
_TYPING = ("typing.py", "typing_extensions.py")
_COMPILER = _TORCH + "_dynamo/"
_MACHINERY = (
    "<frozen importlib",
    *(
        _TORCH + name
        for name in ("overrides.py", "utils/_python_dispatch.py", "_ops.py", "_library/", "_jit_internal.py")
    ),
)


def is_ours(code: CodeType) -> bool:
    """Whether code is that of foregrad, or of what it runs on."""
    file = code.co_filename
    return file.startswith(("<foregrad ", FOLDER, *_MACHINERY)) and file not in _USERS


def _is_housekeeping(frame: FrameType) -> bool:
    """Whether code is that of torch's compiler, which is kept out of a function, or is asked by it for its flags; or
    says what type a variable of torch's has, which Python asks for once in a process."""
    caller = frame.f_back
    if os.path.basename(frame.f_code.co_filename) in _TYPING:
        while caller is not None and os.path.basename(caller.f_code.co_filename) in _TYPING:
            caller = caller.f_back
        return caller is not None and is_torchs(caller.f_code)  # an annotation of torch's
    is_asked = caller is not None and caller.f_code.co_filename.startswith(_COMPILER)
    is_flag = is_asked and frame.f_globals.get("__name__") == "torch.compiler"
    return frame.f_code.co_filename.startswith(_COMPILER) or is_flag


def is_torchs(code: CodeType) -> bool:
    return code.co_filename.startswith(_TORCH)


def is_of_python(code: CodeType) -> bool:
    """Whether code belongs to torch or to Python itself."""
    file = code.co_filename
    return is_torchs(code) or (is_library_file(file) and not file.startswith(_INSTALLED))


def is_library(code: CodeType) -> bool:
    """Whether code belongs to Python or to something installed."""
    return is_library_file(code.co_filename)


def is_library_file(file: str) -> bool:
    return file.startswith((*_LIBRARIES, "<frozen "))


def is_made_by_library(frame: FrameType) -> bool:
    """Whether code that is in no file was made by a library: methods of named tuples, of dataclasses of torch's."""
    if frame.f_code.co_filename != "<string>":
        return False
    home = frame.f_globals.get("__file__")
    is_of_tuple = str(frame.f_globals.get("__name__")).startswith("namedtuple_")
    return is_of_tuple or (isinstance(home, str) and is_library_file(home))


def is_for_us(frame: FrameType) -> bool:
    """Whether code runs since foregrad has asked for it: code of a library that no code of the user's has called."""
    module = str(frame.f_globals.get("__name__"))
    if module.startswith(("foregrad.", "namedtuple_")):  # such as what `dataclass` has written; code of a tuple
        return frame.f_code.co_filename not in _USERS
    caller = frame if is_library(frame.f_code) else None
    while caller is not None and is_library(caller.f_code) and not caller.f_code.co_filename.startswith(FOLDER):
        if caller.f_code.co_filename.startswith(_OF_SYMBOLS) or _is_import_of_torchs(caller.f_code):
            return True
        caller = caller.f_back
    if caller is None or not is_ours(caller.f_code):
        return False
    return caller.f_code.co_filename not in _ON_BEHALF and caller.f_code.co_qualname not in _CALLS_ON


def _is_import_of_torchs(code: CodeType) -> bool:
    """Whether a part of torch is being loaded, which happens once in a process: what it sets is read by what runs."""
    return code.co_name == "<module>" and is_torchs(code)


#: What torch does with sizes that are symbols.
_OF_SYMBOLS = (_TORCH + "fx/", _TORCH + "utils/_sympy/")

#: Functions that call on what the user has called, in files that call more.
_CALLS_ON = ("CalledModules._call",)

#: Where foregrad calls what the user has called.
_ON_BEHALF = tuple(
    FOLDER + name
    for name in (
        "record/recording.py",
        "record/intercept.py",
        "record/wrapper_ops.py",
        "record/session.py",
        "torch_private/autograd_engine.py",
        "torch_private/startup.py",
        "api/compiled.py",
        "api/compiled_module.py",
    )
)
