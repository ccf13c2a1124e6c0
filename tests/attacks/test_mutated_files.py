"""Random changes that leave a file well formed: no code runs. `python -m tests.attacks` makes more of them."""

from pathlib import Path

import pytest

from tests.attacks.hostile import CANARY, attempt
from tests.attacks.mutate import mutated


@pytest.mark.parametrize("start", range(0, 400, 50))
def test_mutated_files(start: int, tmp_path: Path):
    became = {attempt(mutated(seed), tmp_path / "file.fg") for seed in range(start, start + 50)}
    assert not CANARY.exists()
    assert became >= {"CorruptArtifact", "runs"}
