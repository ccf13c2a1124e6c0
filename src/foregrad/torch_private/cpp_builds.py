"""What torch's Inductor asks of the C++ compiler, and what it makes of one that fails.

Inductor is imported inside the functions, since that takes seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from foregrad.process.temporary import replaced
from foregrad.torch_private.while_compiling import while_compiling

#: How Inductor's folders for builds end.
BUILD_FOLDER = "_CxxBuild"

#: How compilers and assemblers say that they do not know an instruction set.
_UNKNOWN = re.compile(
    "unrecognized command.line option|unknown argument|unsupported option|bad value|unknown target|no such instruction"
    "|target specific option mismatch|requires target feature|not declared in this scope|undeclared identifier"
)


@while_compiling
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
