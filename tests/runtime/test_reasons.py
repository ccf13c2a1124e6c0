"""Reasons: short enough to read."""

from foregrad.runtime.guards.reasons import reason_for


def test_a_reason_names_what_differs():
    assert reason_for({"x": "f32[2]"}, [{"x": "f32[3]"}]) == "x was f32[3], is f32[2]"


def test_of_many_differences_the_first_are_named_and_the_others_counted():
    now = {f"state {place}": "f32[]" for place in range(600)}
    reason = reason_for(now, [{}])
    assert reason.startswith("state 0 was None, is f32[]; state 1 was None")
    assert reason.endswith("; and 592 more")
