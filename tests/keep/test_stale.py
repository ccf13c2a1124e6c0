"""A hundred random packages, edited between two processes or within one; `make conformance` runs two thousand."""

import re
import subprocess
import sys

import pytest

from tests.keep.stale.known import KNOWN


def sweep(*options: str) -> str:
    """What a sweep prints. It runs in a process of its own, of which it makes copies."""
    command = [sys.executable, "-m", "tests.keep.stale", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    return done.stdout


@pytest.mark.parametrize(("first", "count"), [(0, 20), pytest.param(20, 80, marks=pytest.mark.slow)])
def test_no_program_that_is_found_is_stale(first, count):
    said = sweep("--seed", str(first), "--count", str(count))
    found, unchanged = map(int, re.findall(r"unchanged, (\d+) of (\d+) start without tracing", said)[0])
    assert unchanged > count * 0.15
    assert found > unchanged // 4, said


@pytest.mark.skipif(not KNOWN, reason="no form is known to be stale")
def test_what_is_right_now_is_not_called_stale():
    sweep("--known")
