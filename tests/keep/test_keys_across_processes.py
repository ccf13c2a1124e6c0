"""Files are edited between two processes: what changes the program changes the key, and what does not, does not.

All projects are read by one process before the edits and by another one after them, from another folder and with
another seed for hashes.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from foregrad.cache.key.ingredients import Key, differences
from tests.keep.edits import Edit, read_edits

SEEN, UNSEEN, UNSURE = read_edits("seen.txt"), read_edits("unseen.txt"), read_edits("unsure.txt")
if find_spec("transformers") is None:
    SEEN = [edit for edit in SEEN if "transformers" not in edit.before["main.py"]]


@pytest.mark.parametrize("part", ["every eighth", pytest.param("the others", marks=pytest.mark.slow)])
def test_edits_between_two_processes(part, tmp_path, subtests):
    """Two tests, since all projects of a part are read at once."""
    seen, unseen, unsure = (taken(part, edits) for edits in (SEEN, UNSEEN, UNSURE))
    keys = []
    for seed, side in enumerate(("before", "after"), start=1):
        folder = tmp_path / side / ("x" * seed)
        for edit in [*seen, *unseen, *unsure]:
            for name, text in getattr(edit, side).items():
                path = folder / edit.name / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        keys.append(read_keys(folder, seed))
    for check, edits in ((is_seen, seen), (changes_nothing, unseen), (is_said_to_be_unsure, unsure)):
        for edit in edits:
            with subtests.test(f"{check.__name__}: {edit.name}"):
                check(*both(keys, edit), edit)


def taken(part: str, edits: list[Edit]) -> list[Edit]:
    return [edit for number, edit in enumerate(edits) if (number % 8 == 0) == (part == "every eighth")]


def read_keys(folder: Path, seed: int):
    worker = Path(__file__).with_name("keys_worker.py")
    surroundings = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(worker), str(folder)], env=surroundings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def both(keys, edit: Edit):
    """The two keys of a project, and why they may not say everything."""
    sides = [side[edit.name] for side in keys]
    assert all("error" not in side for side in sides), "\n".join(side.get("error", "") for side in sides)
    old, new = (Key.from_json(side["key"]) for side in sides)
    return old, new, [side["unsure"] for side in sides]


def is_seen(old: Key, new: Key, unsure, edit: Edit) -> None:
    assert unsure == [[], []]
    assert old.digest != new.digest, "a stale hit"
    found = differences(old, new)
    assert any(edit.ingredient in str(one) for one in found), "\n".join(map(str, found))


def changes_nothing(old: Key, new: Key, unsure, edit: Edit) -> None:
    """What is no ingredient."""
    assert [str(one) for one in differences(old, new)] == []
    assert old.digest == new.digest
    assert unsure == [[], []]


def is_said_to_be_unsure(old: Key, new: Key, unsure, edit: Edit) -> None:
    """No entry may be found by such a key, before the edit or after it."""
    for reasons in unsure:
        assert any(edit.ingredient in reason for reason in reasons), reasons
