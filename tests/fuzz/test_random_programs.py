"""Random programs behave the same captured and in eager PyTorch. `python -m tests.fuzz` runs many more."""

from __future__ import annotations

import pytest

from tests.fuzz.check import FINE
from tests.fuzz.generate import program
from tests.fuzz.run import with_foregrad

SEEDS = {"views": 300, "draws": 60, "questions": 100}
CHUNK = 20


@pytest.mark.parametrize(("about", "start"), [(about, at) for about, n in SEEDS.items() for at in range(0, n, CHUNK)])
def test_random_programs_equal_eager(about: str, start: int) -> None:
    verdicts = {seed: with_foregrad(program(seed, about)) for seed in range(start, start + CHUNK)}
    wrong = {seed: text for seed, text in verdicts.items() if text and not text.startswith(FINE)}
    report = "\n\n".join(f"{program(seed, about).source()}# {text}" for seed, text in wrong.items())
    assert not wrong, f"see python -m tests.fuzz --about {about} --shrink {min(wrong)}\n\n{report}"
