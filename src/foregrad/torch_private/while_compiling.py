"""While foregrad compiles: torch's Inductor as foregrad needs it, and as it was as soon as nobody compiles any more.

Inductor then works in a folder of ours, runs the C++ compiler as we say, and remembers what compilers have answered
apart from what it remembers otherwise. A `torch.compile` of the user's, before or afterwards, finds nothing of that.
One in another thread at the same time does, since Inductor keeps most of it in variables of the process.

Inductor is imported inside the functions, since that takes seconds.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar

from foregrad.process import children
from foregrad.process.folders import build_folder
from foregrad.process.temporary import Attribute, TemporaryChange

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Tools:
    """How C++ is built: the name of a compiler; what runs a command in a folder, and gives a status and what was said;
    a folder for precompiled headers, and what may know the one that is wanted."""

    compiler: str
    run: Callable[[list[str], Path], tuple[int, str]]
    headers: Path
    header: Callable[[Any, Callable[[], str]], str]


@contextmanager
def inductor_settings(**settings: Any) -> Iterator[None]:
    """Inductor's configuration, changed for the time of a block, in this thread."""
    from torch._inductor import config

    with config.patch(settings):
        yield


def build_with(tools: Tools) -> None:
    """Let Inductor build like this from now on, while foregrad compiles."""
    _compiling.build_with(tools)


def while_compiling(function: Callable[P, T]) -> Callable[P, T]:
    """A function that runs with Inductor as foregrad needs it. What it leaves to other threads has to be one too."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with _compiling.held():
            return function(*args, **kwargs)

    return run


_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


class _OwnFolder(TemporaryChange):
    """The folder in which Inductor writes and from which it loads code: one of ours, which nobody else can write. Its
    own is in the temporary folder, under a name that anybody can take first."""

    places = (f"os.environ: {_FOLDER}",)
    before: str | None = None
    is_changed = False

    def change(self) -> None:
        if not self.is_changed:
            self.before, self.is_changed = os.environ.get(_FOLDER), True
            os.environ[_FOLDER] = str(build_folder() / "inductor")

    def put_back(self) -> None:
        if not self.is_changed:
            return
        if self.before is None:
            os.environ.pop(_FOLDER, None)
        else:
            os.environ[_FOLDER] = self.before
        self.is_changed = False


class _Compiling:
    """All that is otherwise. Threads that compile at once share it: the last one puts it back."""

    def __init__(self) -> None:
        self._changes: tuple[TemporaryChange, ...] = (_OwnFolder(),)
        self._settings: dict[str, Any] = {}  # of each thread by itself

    def build_with(self, tools: Tools) -> None:
        self._changes = (self._changes[0], *_builds(tools), *_folders(tools), *_separate_memory())
        self._settings = {"cpp.cxx": (None, tools.compiler)}

    @contextmanager
    def held(self) -> Iterator[None]:
        with ExitStack() as all_of_it:
            for one in self._changes:
                all_of_it.enter_context(one.held())
            if self._settings:
                all_of_it.enter_context(inductor_settings(**self._settings))
            yield


_compiling = _Compiling()


def _builds(tools: Tools) -> Iterator[TemporaryChange]:
    """Compilers are run our way; they, and what Inductor tries in processes, end when this process does."""
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa, exc

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        command = shlex.split(cmd_line)
        status, said = tools.run(command, Path(cwd))
        if status:
            raise exc.CppCompileError(command, said)

    yield Attribute(cpp_builder, "run_compile_cmd", run_compile_cmd)
    ours = {"Popen": children.Child, "run": children.run}
    ours |= {"check_output": children.check_output, "check_call": children.check_call}
    for module in (codecache, cpp_builder, cpu_vec_isa):
        yield Attribute(module, "subprocess", SimpleNamespace(**vars(subprocess) | ours))


def _folders(tools: Tools) -> Iterator[TemporaryChange]:
    """Precompiled headers are kept in a folder that lasts. No folder of ours is remembered by Inductor."""
    from torch._inductor import codecache

    make = _forgetful(codecache._precompile_header)
    find = _forgetful(codecache.CacheBase.get_local_cache_path)

    def precompile(header: str, command: str, **options: Any) -> str:
        question = [header, command, sorted((k, str(v)) for k, v in options.items())]
        return tools.header(question, lambda: str(make(header, command, **options)))

    yield Attribute(codecache, "_HEADER_DIR", str(tools.headers))
    yield Attribute(codecache, "_HEADER_LOCK_DIR", str(tools.headers / "locks"))
    yield Attribute(codecache, "_precompile_header", precompile)
    yield Attribute(codecache.CacheBase, "get_local_cache_path", staticmethod(find))


def _separate_memory() -> Iterator[TemporaryChange]:
    """What Inductor asks of the compiler once, and remembers without its name: the user may have chosen another."""
    from torch._inductor import cpp_builder, cpu_vec_isa

    for name in ("is_gcc", "is_clang", "is_intel_compiler", "is_apple_clang", "is_msvc_cl"):
        yield Attribute(cpp_builder, name, cache(_forgetful(getattr(cpp_builder, name))))
    yield Attribute(cpu_vec_isa, "valid_vec_isa_list", cache(_forgetful(cpu_vec_isa.valid_vec_isa_list)))
    instruction_sets: list[Any] = [replace(one) for one in cpu_vec_isa.supported_vec_isa_list]  # type: ignore[type-var]
    yield Attribute(cpu_vec_isa, "supported_vec_isa_list", instruction_sets)  # they note down what was found out
    for kind in dict.fromkeys(base for one in instruction_sets for base in type(one).__mro__):
        for name, value in vars(kind).items():
            if hasattr(value, "cache_info"):
                yield Attribute(kind, name, cache(_forgetful(value)))


def _forgetful(function: Any) -> Callable[..., Any]:
    """A function without its memory."""
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found
