"""`make test` and `make test-slow` run every test between them, and none twice. `make test-all` runs both."""

import re
import shlex
import shutil
import subprocess

import pytest

from tests.house.source import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def runs(target: str) -> list[list[str]]:
    """The arguments of each run of pytest, with the backend first."""
    said = subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    found = []
    for line in said.splitlines():
        if match := re.fullmatch(r"(.*)\S+ -m pytest -q -n \S+ (.+)", line):
            backend = re.search(r"FOREGRAD_BACKEND=(\w+)", match[1])
            found.append([backend[1] if backend else "", *shlex.split(match[2])])
    return found


def test_every_test_is_run_by_one_of_the_two():
    """Whatever is selected besides would be missed by both, so there is nothing but the marker."""
    assert [one for one in runs("test") if not one[0]] == [["", "-m", "not slow"]]
    assert [one for one in runs("test-slow") if not one[0]] == [["", "-m", "slow"]]


@pytest.mark.parametrize("backend", ["inductor", "aoti"])
def test_what_is_also_compiled_is_run_by_one_of_the_two(backend):
    (quick,) = [one[1:] for one in runs("test") if one[0] == backend]
    (slow,) = [one[1:] for one in runs("test-slow") if one[0] == backend]
    marker, files = quick[:2], quick[2:]
    assert marker == ["-m", "also_compiled"]
    assert slow == [*marker, *(f"--ignore={file}" for file in files), "tests/behaviours"]
    assert all("also_compiled" in (ROOT / file).read_text() for file in files)


def test_all_are_both():
    assert runs("test-all") == runs("test") + runs("test-slow")
