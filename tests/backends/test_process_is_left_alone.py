"""foregrad changes Inductor while it compiles: afterwards a process is as it was, for `torch.compile` of the user's."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from foregrad.backends import toolchain

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")


def told_by(way, **places):
    """What a new process says about itself."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"} | places
    environment.pop("TORCHINDUCTOR_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-m", "tests.backends.left_alone", way],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["backends", "threads"])
def test_nothing_is_changed_after_a_compilation(way):
    assert told_by(way) == {}


@pytest.mark.parametrize(
    "way", ["error", *(pytest.param(one, marks=pytest.mark.slow) for one in ("interrupt", "probe"))]
)
def test_nothing_is_changed_after_a_compilation_that_fails(way):
    assert told_by(way) == {}


@pytest.mark.slow
def test_torch_compile_writes_the_same_to_the_same_folder_after_foregrad(tmp_path):
    temporary = tmp_path / "temporary"
    quicker = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0", "TORCHINDUCTOR_VEC_ISA_OK": "1"}

    def of_the_user(way):
        temporary.mkdir()
        told = told_by(way, TMPDIR=str(temporary), **quicker)
        shutil.rmtree(temporary)
        return told

    alone, after = of_the_user("alone"), of_the_user("after foregrad")
    assert Path(alone["folder"]).parent == temporary
    assert any(name.endswith(".so") for name in alone["files"])
    assert after == alone
