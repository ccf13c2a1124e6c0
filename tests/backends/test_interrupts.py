"""Ctrl-C while the C++ compiler is at work: nothing half made, nobody still working, and it can be tried again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from foregrad.backends import toolchain
from tests.backends.lend_toolchain import lend_toolchain

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at processes in /proc")
@pytest.mark.parametrize(
    ("backend", "whom", "times"), [("inductor", "process", 5), pytest.param("aoti", "group", 4, marks=pytest.mark.slow)]
)
def test_an_interrupt_leaves_nothing_behind(backend, whom, times, tmp_path):
    lend_toolchain(tmp_path)
    (tmp_path / "temporary").mkdir()
    places = {"FOREGRAD_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.interrupted", backend, str(tmp_path), "0", str(times), whom],
        env=os.environ | places | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        cwd=ROOT,
        start_new_session=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["left"] == []
    lost = done.stderr.count("Exception ignored in")  # Python drops one that arrives in a finalizer, and says so
    assert len(told["moments"]) + lost == times
