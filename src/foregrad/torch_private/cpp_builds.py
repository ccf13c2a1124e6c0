"""How torch's Inductor runs the C++ compiler and what it asks of it.

Inductor is imported inside the functions, since that takes seconds.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from foregrad.process import children
from foregrad.process.temporary import replaced
from foregrad.torch_private.inductor import in_own_folder

#: How Inductor's folders for builds end.
BUILD_FOLDER = "_CxxBuild"


def build_with(run: Callable[[list[str], Path], tuple[int, str]]) -> None:
    """Let Inductor run the C++ compiler this way: a command in a folder gives a status and what was said."""
    from torch._inductor import cpp_builder, exc

    def run_compile_cmd(cmd_line: str, cwd: str) -> None:
        command = shlex.split(cmd_line)
        status, said = run(command, Path(cwd))
        if status:
            raise exc.CppCompileError(command, said)

    cpp_builder.run_compile_cmd = run_compile_cmd


def end_with_this_process() -> None:
    """Let what Inductor asks of compilers and tries in processes end when this process does."""
    from torch._inductor import codecache, cpp_builder, cpu_vec_isa

    ours = {"Popen": children.Child, "run": children.run}
    ours |= {"check_output": children.check_output, "check_call": children.check_call}
    for module in (codecache, cpp_builder, cpu_vec_isa):
        module.subprocess = SimpleNamespace(**vars(subprocess) | ours)  # type: ignore[attr-defined]


def use_compiler(name: str) -> None:
    """Let Inductor call this compiler, in place of the one that it would look for."""
    from torch._inductor import config

    config.cpp.cxx = (None, name)


#: How compilers and assemblers say that they do not know an instruction set.
_UNKNOWN = re.compile(
    "unrecognized command.line option|unknown argument|unsupported option|bad value|unknown target|no such instruction"
    "|target specific option mismatch|requires target feature|not declared in this scope|undeclared identifier"
)


@in_own_folder
def probe_instruction_sets(recall: Callable[[Any, Callable[[], bool]], bool]) -> list[str]:
    """The vector instructions that Inductor may use, best first; `recall` may know what a trial build would tell.
    Raises what the compiler said where it failed, and not because it does not know them: it may work the next time."""
    from torch._inductor import cpp_builder
    from torch._inductor.cpu_vec_isa import VecISA, valid_vec_isa_list

    failed: list[Exception] = []

    def run_and_note(command: str, cwd: str) -> None:
        failed.clear()
        try:
            run(command, cwd)
        except Exception as error:
            failed.append(error)
            raise

    def ask(isa: Any, code: str) -> bool:
        failed.clear()
        if build(isa, code):
            return True
        if failed and _UNKNOWN.search(getattr(failed[0], "output", "")):
            return False
        failed.clear()
        can_build = build(isa, code)
        if failed:
            raise failed[0]
        return can_build

    def check(isa: Any, code: str) -> bool:
        return recall(["can build for", str(isa), isa.build_arch_flags(), code], lambda: ask(isa, code))

    build, run = VecISA.check_build, cpp_builder.run_compile_cmd
    with replaced(VecISA, "check_build", check), replaced(cpp_builder, "run_compile_cmd", run_and_note):
        return [str(isa) for isa in valid_vec_isa_list()]


def failed_build(error: BaseException | None) -> Exception | None:
    """What a compiler that failed, or the system, has said, where an error comes from that: it may be gone the next
    time."""
    from torch._inductor.exc import CppCompileError

    while error is not None and not isinstance(error, (CppCompileError, OSError)):
        error = error.__cause__ or error.__context__
    return error


def keep_precompiled_headers(folder: Path, recall: Callable[[Any, Callable[[], str]], str]) -> None:
    """Keep Inductor's precompiled headers in a folder that lasts; `recall` may know the one that is wanted."""
    from torch._inductor import codecache

    def precompile(header: str, command: str, **options: Any) -> str:
        question = [header, command, sorted((k, str(v)) for k, v in options.items())]
        return recall(question, lambda: make(header, command, **options))

    make = codecache._precompile_header
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(folder), str(folder / "locks")
    codecache._precompile_header = precompile  # type: ignore[assignment]
