"""A small part of `python -m tests.keep.kills`, which `make conformance` runs with 1,000 kills."""

import os
import subprocess
import sys

import pytest

from tests.house.source import ROOT


@pytest.mark.parametrize("options", [[], ["--damage"]], ids=["kills", "kills and damage"])
def test_killed_writers_leave_no_reader_without_a_good_entry(options):
    command = [sys.executable, "-m", "tests.keep.kills", "--kills", "40", *options]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
