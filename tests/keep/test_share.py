"""Real code starts without tracing in a second process; `make conformance` starts all that `share/starts.py` names."""

from importlib.util import find_spec

import pytest

from tests.keep.share.starts import DOUBTS, STARTS, start_twice

needs_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed")
SAMPLE = [
    "workload mlp-small",
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in (
            "workload gpt",
            "example maml",
            "script in the manner of nanoGPT",
            "script in the manner of nanoGPT, with its configurator",
            "script with a command line",
        )
    ),
    pytest.param("architecture GPT2", marks=[needs_transformers, pytest.mark.slow]),
]


@pytest.mark.parametrize("name", SAMPLE)
def test_a_second_process_starts_without_tracing(name: str):
    second = start_twice(name)
    assert second.is_right, second.explained


def test_all_that_should_be_started_is_there():
    kinds = [name.partition(" ")[0] for name in STARTS]
    assert [kinds.count(kind) for kind in ("workload", "example", "script", "architecture")] == [6, 4, 3, 28]
    assert kinds.count("architecture") - len(DOUBTS) >= 20
