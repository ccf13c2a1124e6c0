"""Random changes between calls: what compiled calls give is what eager gives."""

import pytest

from tests.behaviours.random_changes import differs


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_changes_between_calls_are_seen(first):
    assert [found for seed in range(first, first + 10) if (found := differs(seed))] == []
