"""Random programs behave the same captured and in eager PyTorch. `python -m tests.fuzz` runs many more."""

from __future__ import annotations

import pytest

from tests.fuzz.check import REFUSED
from tests.fuzz.generate import program
from tests.fuzz.run import with_foregrad

SEEDS = 300
CHUNK = 25


@pytest.mark.parametrize("start", range(0, SEEDS, CHUNK))
def test_random_programs_equal_eager(start: int) -> None:
    verdicts = {seed: with_foregrad(program(seed)) for seed in range(start, start + CHUNK)}
    wrong = {seed: text for seed, text in verdicts.items() if text and not text.startswith(REFUSED)}
    report = "\n\n".join(f"{program(seed).source()}# {text}" for seed, text in wrong.items())
    assert not wrong, f"see python -m tests.fuzz --shrink {min(wrong)}\n\n{report}"
