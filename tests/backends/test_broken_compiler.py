"""A compiler that fails for a while: a warning, ops one by one, and nothing of it is left when it works again."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foregrad.backends import toolchain

ROOT = Path(__file__).parents[2]
PROGRAMS = ("fused", "light", "as_library")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler"),
]

#: A compiler that fails as the file `broken` beside it says, if there is one. Each run is a line of `runs`.
SCRIPT = """#!/bin/sh
here=$(dirname "$0")
case " $* " in
*" -o "*)
    echo "$*" >> "$here/runs"
    [ -e "$here/broken" ] && . "$here/broken"
esac
exec COMPILER "$@"
"""
NO_SPACE = 'echo "fatal error: error writing to x.s: No space left on device" >&2; exit 1'
BROKEN = {
    "always": NO_SPACE,
    "killed": "kill -9 $$",
    "now and then": f'[ $(($(wc -l < "$here/runs") % 2)) = 0 ] && {{ {NO_SPACE}; }}',
}


class Machine:
    """A machine with a compiler of its own, which can be broken and mended."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder, folder / "bin"
        for part in (self.bin, folder / "temporary"):
            part.mkdir()
        wrapper = self.bin / "g++"
        wrapper.write_text(SCRIPT.replace("COMPILER", toolchain.compiler()))
        wrapper.chmod(0o700)

    def break_compiler(self, how: str) -> None:
        (self.bin / "broken").write_text(how)

    def mend(self) -> None:
        (self.bin / "broken").unlink(missing_ok=True)

    def forget_builds(self) -> None:
        """All but what is known about the compiler, and its precompiled headers."""
        for folder in (self.folder / "temporary", self.folder / "cache"):
            shutil.rmtree(folder, ignore_errors=True)
        for library in self.folder.glob("code-2/library-*"):
            library.unlink()
        (self.folder / "temporary").mkdir()

    def start(self, *programs: str) -> dict:
        """What a new process makes of programs."""
        places = {"FOREGRAD_CACHE_DIR": str(self.folder), "TMPDIR": str(self.folder / "temporary")}
        done = subprocess.run(
            [sys.executable, "-m", "tests.backends.first_build", str(self.folder / "cache"), *programs],
            env=os.environ | places | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "CXX": str(self.bin / "g++")},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.usual = made.start(*PROGRAMS)
    return made


def check_works(told, usual):
    for name in told.keys() & PROGRAMS:
        assert told[name] == {**usual[name], "origin": told[name]["origin"]}
        assert told[name]["warnings"] == told[name]["fallbacks"] == []


@pytest.mark.parametrize("how", BROKEN)
def test_what_a_broken_compiler_left_is_built_again_by_the_next_process(machine, how):
    machine.forget_builds()
    machine.break_compiler(BROKEN[how])
    try:
        broken = machine.start(*PROGRAMS)
    finally:
        machine.mend()
    failed = [name for name in PROGRAMS if broken[name]["fallbacks"]]
    assert failed == list(PROGRAMS) or (how == "now and then" and failed)
    for name in failed:
        assert len(broken[name]["warnings"]) >= 1
        said = "\n".join(broken[name]["warnings"])
        assert f"a part of {name} is not compiled" in said
        assert "No space left on device" in said or how == "killed"
    mended = machine.start(*PROGRAMS)
    check_works(mended, machine.usual)
    assert [mended[name]["origin"] for name in failed] == ["captured"] * len(failed)
    if how == "now and then":
        again = machine.start(*PROGRAMS)
        check_works(again, machine.usual)
        assert [again[name]["origin"] for name in PROGRAMS] == ["found without tracing"] * 3


def test_a_compiler_that_fails_is_not_one_that_lacks_an_instruction_set(tmp_path, machine):
    if len(machine.usual["instruction sets"]) < 2:
        pytest.skip("the processor has one instruction set")
    fresh = Machine(tmp_path)
    fresh.break_compiler(f'case "$*" in *avx512*) {NO_SPACE};; esac')
    told = fresh.start("fused")
    assert "No space left on device" in told["instruction sets"]
    assert told["fused"]["fallbacks"]
    once = f'[ $(wc -l < "$here/runs") = 1 ] && {{ {NO_SPACE}; }}'  # which is asked again
    (fresh.bin / "runs").unlink()
    fresh.break_compiler(once)
    told = fresh.start("fused")
    assert told["instruction sets"] == machine.usual["instruction sets"]
    check_works(told, machine.usual)


def test_a_compiler_that_does_not_know_an_instruction_set_works_without(tmp_path, machine):
    if not any("vnni" in one for one in machine.usual["instruction sets"]):
        pytest.skip("the processor has no instructions that a compiler may not know")
    old = Machine(tmp_path)
    unknown = "g++: error: unrecognized command-line option '-mavx512vnni'"
    old.break_compiler(f'case "$*" in *-mavx512vnni*) echo "{unknown}" >&2; exit 1;; esac')
    told = old.start("fused")
    assert told["instruction sets"] == [one for one in machine.usual["instruction sets"] if "vnni" not in one]
    check_works(told, machine.usual)
    (answers,) = (old.folder / "toolchain").glob("*.json")
    assert False in json.loads(answers.read_text())["answers"].values()  # nobody asks again
