"""Modules with hooks start without tracing in a new process, and are traced if a hook is another one by then."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import FOUND
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.core.errors import CorruptArtifact

WORKER = Path(__file__).with_name("hooks_worker.py")


def outcomes(folder: Path, variant: str, data: int) -> dict[str, dict]:
    surroundings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(WORKER), str(folder), variant, str(data)]
    done = subprocess.run(command, env=surroundings, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, dict] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_hooks_between_processes(tmp_path, subtests):
    """One test, since each process goes through all kinds of hooks."""
    first, again, other = (outcomes(tmp_path, *one) for one in (("a", 2), ("a", 3), ("b", 4)))
    names = list(first)
    changes = names[: names.index("a tensor in a closure")]
    for name in names:
        with subtests.test(name):
            assert [run[name]["is right"] for run in (first, again, other)] == [True] * 3
            assert not first[name]["origin"].startswith(FOUND)
            assert again[name]["origin"].startswith(FOUND), again[name]["origin"]
            assert other[name]["origin"].startswith(FOUND) == (name not in changes), other[name]["origin"]


def test_what_cannot_be_found_again_is_said_by_its_name(tmp_path):
    net, held = nn.Sequential(nn.Linear(3, 3)), [torch.ones(3)]
    net[0].register_forward_hook(lambda module, args, result: result * held[0])
    compiled = fg.compile(net, backend="eager", cache=str(tmp_path))
    compiled(torch.ones(3))
    assert "it cannot be kept: it reads `0`" in str(fg.explain(compiled))


def test_a_file_finds_nothing_in_hooks():
    net = nn.Linear(3, 3)
    net.register_forward_hook(lambda module, args, result: result)
    place = {"is": "hook", "of": {"is": "module", "of": 0, "path": ""}, "table": "_forward_hooks", "number": 0}
    place |= {"part": "globals", "name": ""}
    assert StatePlaces((net,), None, hooks=True).find(place) is globals()
    with pytest.raises(CorruptArtifact, match="no place in a hook"):
        StatePlaces((net,), None).find(place)
