"""What files say: nothing about the machine that they were written on."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.house.source import ROOT

# Spelled in pieces, so that this file does not find itself.
MACHINE_PATHS = ("/ro" + "ot/", "/ho" + "me/", "/Use" + "rs/", "/wo" + "rk/", "/op" + "t/", "/tm" + "p/")
REGISTRIES = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "download.py" + "torch.org",
    "ana" + "conda.org",
    "arti" + "factory",
    "index" + "-url http",
)
FORBIDDEN = re.compile(rf"(?<![\w.])({'|'.join(MACHINE_PATHS)})|{'|'.join(map(re.escape, REGISTRIES))}")


def tracked_files() -> list[Path]:
    """Files that git tracks or would add; an unpacked archive has no git and is not checked."""
    if not (ROOT / ".git").exists():
        return []
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for name in listing.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_machine_path_and_no_registry_is_named():
    files = tracked_files()
    if not files:
        pytest.skip("not a git checkout")
    found = [
        f"{path.relative_to(ROOT)}:{number}: {match[0]}"
        for path in files
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1)
        if (match := FORBIDDEN.search(line))
    ]
    assert not found, "\n".join(found)
