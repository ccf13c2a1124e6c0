"""What is said of where a program comes from: in `fg.explain`, in `origin`, and when a cache checks itself."""

import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import CAPTURED, FOUND
from foregrad.process import forked_copy as copies


def scaled(scale: float, cache: fg.Cache):
    def scales(x):
        return x * scale

    return fg.compile(scales, backend="eager", cache=cache, dynamic=False)


@pytest.fixture
def cache(tmp_path: Path) -> fg.Cache:
    return fg.Cache(tmp_path / "cache")


def test_origin_is_that_of_the_last_capture(cache: fg.Cache):
    first = scaled(2.0, cache)
    assert first.origin is None
    first(torch.ones(3))
    assert str(first.origin) == "captured; no entry of these sources: not there"
    second = scaled(2.0, cache)
    second(torch.ones(3))
    assert second.origin.how == FOUND
    second(torch.ones(4))
    assert second.origin.how == CAPTURED
    model = fg.compile(nn.Linear(3, 2), backend="eager", cache=cache)
    model(torch.ones(1, 3))
    assert model.origin.how == CAPTURED


def test_a_miss_is_explained_by_the_nearest_entry(cache: fg.Cache):
    scaled(2.0, cache)(torch.ones(3))
    function = scaled(3.0, cache)
    function(torch.ones(3))
    function(torch.ones(4))
    explanation = fg.explain(function)
    first, second = explanation.explained
    assert [(d.old, d.new) for d in first.differences] == [("2.0", "3.0")]  # not what was kept after it
    assert [(d.old, d.new) for d in second.differences] == [("Tensor f32[3]", "Tensor f32[4]")]
    assert "2.0 -> 3.0" in str(explanation)
    assert explanation.captures == function.captures
    assert json.loads(json.dumps(explanation.as_json()))["captures"][0]["differences"][0]["new"] == "3.0"


def test_a_first_capture_has_nothing_to_be_compared_with(cache: fg.Cache):
    function = scaled(2.0, cache)
    function(torch.ones(3))
    (only,) = fg.explain(function).explained
    assert (only.nearest, only.differences) == (None, ())
    assert str(fg.explain(function)).endswith("(3 nodes): captured\n     no entry of these sources: not there")


def test_a_cache_that_is_only_read_explains_too(tmp_path: Path):
    scaled(2.0, fg.Cache(tmp_path / "cache"))(torch.ones(3))
    function = scaled(3.0, fg.Cache(tmp_path / "cache", readonly=True))
    function(torch.ones(3))
    assert "2.0 -> 3.0" in str(fg.explain(function))


def test_what_makes_sources_unsure_is_named(cache: fg.Cache):
    def reads(x):
        return x * float(os.environ.get("FOREGRAD_TEST_SCALE", "2"))

    function = fg.compile(reads, backend="eager", cache=cache)
    function(torch.ones(3))
    assert "uses os.environ" in str(fg.explain(function))
    assert fg.explain(function).explained[0].nearest is None


# -- verify_every --------------------------------------------------------------------------------------------------


def doubled(x):
    return x * 2.0


def tripled(x):
    return x * 3.0


def compiled(function: Callable, cache: fg.Cache):
    return fg.compile(function, backend="eager", cache=cache)


def checking(cache: fg.Cache, every: int = 1) -> fg.Cache:
    return fg.Cache([cache], verify_every=every)


def call_key(cache: fg.Cache, function) -> str:
    function(torch.ones(3))
    return function.captures[0].origin.key


def called_and_checked(function, checked: fg.Cache) -> torch.Tensor:
    result = function(torch.ones(3))
    checked.wait()
    return result


def with_a_wrong_entry(cache: fg.Cache) -> str:
    """A cache in which the call of `doubled` has taken the place of that of `tripled`."""
    wrong, right = call_key(cache, compiled(doubled, cache)), call_key(cache, compiled(tripled, cache))
    cache.put(right, cache.get(wrong).data)
    return right


@pytest.fixture(params=["in a copy", "first"])
def way_of_checking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """In the background, or, where a process cannot be copied, before the call."""
    if request.param == "first":
        monkeypatch.setattr(copies, "can_be_copied", lambda: False)
    return request.param


def test_a_wrong_entry_is_found_and_removed(way_of_checking: str, cache: fg.Cache):
    key = with_a_wrong_entry(cache)
    checked = checking(cache)
    function = compiled(tripled, checked)
    with pytest.warns(UserWarning, match="a capture gives another program") as caught:
        first = called_and_checked(function, checked)
    assert first.tolist() == [2.0 if way_of_checking == "in a copy" else 3.0] * 3
    message = str(caught[0].message)
    assert "program differs" in message
    assert "(v0, 2.0)" in message
    assert "(v0, 3.0)" in message
    assert (caught[0].filename, caught[0].lineno) == (__file__, tripled.__code__.co_firstlineno)
    assert function(torch.ones(3)).tolist() == [3.0] * 3
    assert "holds another program" in str(function.origin)
    assert not hasattr(cache.get(key), "data")
    assert function(torch.ones(3)).tolist() == [3.0] * 3
    assert len(function.captures) == 1


def test_a_wrong_entry_that_cannot_be_removed_is_named_as_such(way_of_checking: str, cache: fg.Cache):
    with_a_wrong_entry(cache)
    checked = fg.Cache([cache], verify_every=1, readonly=True)
    function = compiled(tripled, checked)
    with pytest.warns(UserWarning, match="could not be removed: it is only read"):
        called_and_checked(function, checked)
    assert function(torch.ones(3)).tolist() == [3.0] * 3


def test_a_check_disturbs_nothing_and_tells_if_it_fails(cache: fg.Cache, monkeypatch: pytest.MonkeyPatch):
    key = call_key(cache, compiled(tripled, cache))
    checked = checking(cache)
    function = compiled(tripled, checked)
    seen: list[int] = []

    def record(*args: object) -> None:
        seen.append(os.getpid())
        torch.manual_seed(5)
        print("this is on no screen")
        raise RuntimeError("no capture today")

    monkeypatch.setattr(function, "_record", record)
    torch.manual_seed(3)
    state = torch.get_rng_state()
    assert function(torch.ones(3)).tolist() == [3.0] * 3
    checked.wait()
    assert not seen
    assert torch.equal(torch.get_rng_state(), state)
    assert "it could not be checked: RuntimeError: no capture today" in str(function.origin)
    assert hasattr(cache.get(key), "data")


def test_a_copy_that_does_not_answer_is_ended(cache: fg.Cache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(copies, "_LIMIT_SECONDS", 0.2)
    answers: list[object] = []
    copies.in_a_copy(lambda: threading.Event().wait(), answers.append).join(30)
    assert "did not answer" in str(answers[0])
    assert not copies._running


def test_without_the_check_it_would_be_used(cache: fg.Cache):
    """The entry is as wrong as these tests claim."""
    with_a_wrong_entry(cache)
    assert compiled(tripled, cache)(torch.ones(3)).tolist() == [2.0] * 3


def test_a_right_entry_is_used_and_said_to_be_checked(way_of_checking: str, cache: fg.Cache):
    key = call_key(cache, compiled(tripled, cache))
    checked = checking(cache)
    function = compiled(tripled, checked)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert function(torch.ones(3)).tolist() == [3.0] * 3
        checked.wait()
    assert function.origin.how == FOUND
    assert "checked: a capture gives the same program" in str(function.origin)
    assert hasattr(cache.get(key), "data")


def test_a_step_is_checked_and_trains_as_before(way_of_checking: str, cache: fg.Cache):
    def trained(where: fg.Cache) -> tuple[list[float], list[str]]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        @fg.step(model, optimizer, backend="eager", cache=where)
        def train(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        losses = [train(torch.ones(3, 4)).item() for _ in range(4)]
        where.wait()
        return losses, [str(made.origin) for made in train.captures]

    expected, _ = trained(cache)
    losses, origins = trained(checking(cache))
    assert losses == expected
    assert all("checked" in origin for origin in origins)


def run_in_threads(call: Callable[[], None], count: int, then: Callable[[], None]) -> None:
    threads = [threading.Thread(target=call) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    then()


def test_threads_check_once(cache: fg.Cache):
    with_a_wrong_entry(cache)
    checked = checking(cache)
    function = compiled(tripled, checked)
    results: list[list[float]] = []
    start = threading.Barrier(8)

    def call() -> None:
        start.wait()
        results.append(function(torch.ones(3)).tolist())

    with pytest.warns(UserWarning, match="another program") as caught:
        run_in_threads(call, 8, then=checked.wait)
    assert len(results) == 8
    assert len(caught) == 1
    assert function(torch.ones(3)).tolist() == [3.0] * 3
    assert len(function.captures) == 1


def test_the_environment_says_how_often_a_find_is_checked(cache: fg.Cache, monkeypatch: pytest.MonkeyPatch):
    compiled(doubled, cache)(torch.ones(3))
    monkeypatch.setenv("FOREGRAD_CACHE_VERIFY", "1")
    told, other = fg.Cache([cache]), fg.Cache([cache], verify_every=10**9)
    function = compiled(doubled, told)
    called_and_checked(function, told)
    assert "checked: a capture gives the same program" in str(function.captures[0].origin)
    assert (told.verify_every, other.verify_every) == (1, 10**9)


@pytest.mark.parametrize("text", ["0", "-1", "often"])
def test_a_rate_of_checks_in_the_environment_is_a_number(text: str, cache: fg.Cache, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FOREGRAD_CACHE_VERIFY", text)
    with pytest.raises(ValueError, match="FOREGRAD_CACHE_VERIFY is a number, 1 or more"):
        fg.Cache([cache])


def test_about_one_in_n_is_checked(cache: fg.Cache):
    assert not cache.draws_check()
    drawn = sum(checking(cache, 4).draws_check() for _ in range(2000))
    assert 350 < drawn < 650  # 500 is expected, and 150 is more than seven standard deviations
    with pytest.raises(ValueError, match="verify_every is 1 or more"):
        checking(cache, 0)
