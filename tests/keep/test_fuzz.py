"""Two thousand damaged entries; `make conformance` reads fifty thousand."""

from tests.keep.fuzz import TRUST, run

COUNT = 2000


def test_damaged_entries_raise_our_errors_only():
    verdicts = run(range(COUNT), None)
    assert verdicts.total() == COUNT
    assert verdicts.keys() == {"CorruptArtifact", "accepted"}
    assert COUNT // 20 < verdicts["accepted"] < COUNT // 2, "the fuzzer reaches neither side"


def test_damaged_entries_are_not_trusted():
    verdicts = run(range(COUNT), TRUST)
    assert verdicts["accepted"] < COUNT // 100
    assert verdicts["UntrustedArtifact"] > COUNT // 50
