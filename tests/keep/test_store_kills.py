"""A small part of `python -m tests.keep.kills`, which `make conformance` runs with 1,000 kills, and 200 of builds."""

import os
import subprocess
import sys

import pytest

from foregrad.backends import toolchain
from tests.house.source import ROOT


def run(*options):
    command = [sys.executable, "-m", "tests.keep.kills", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("options", [[], ["--damage"]], ids=["kills", "kills and damage"])
def test_killed_writers_leave_no_reader_without_a_good_entry(options):
    run("--kills", "40", *options)


@pytest.mark.slow
@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="looks at processes in /proc")
def test_killed_builds_leave_no_compiler_and_the_next_process_builds():
    run("--inductor", "--kills", "2")
