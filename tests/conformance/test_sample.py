"""A fixed part of the sweeps, small enough for every test run; `python -m tests.conformance` is all."""

import importlib.util

import pytest

from . import judge
from .__main__ import check
from .judge import Status
from .modules import names as module_names
from .ops import names as op_names

MAY_REFUSE = {"to_sparse": "sparse tensors are not captured"}


def assert_conforms(title: str, name: str) -> None:
    for result in check(title, name, judge.foregrad):
        if result.status is Status.REFUSED and name in MAY_REFUSE:
            pytest.skip(MAY_REFUSE[name])
        assert result.status in (Status.PASSED, Status.EXCLUDED), f"{result.group} {name}: {result.reason}"


@pytest.mark.parametrize("name", op_names()[::12])
def test_an_op_does_what_eager_does(name: str) -> None:
    assert_conforms("ops", name)


@pytest.mark.parametrize("name", module_names()[::6])
def test_a_module_does_what_eager_does(name: str) -> None:
    assert_conforms("modules", name)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["GPT2", "BERT"])
def test_an_architecture_trains_as_in_eager(name: str) -> None:
    assert_conforms("architectures", name)


def test_the_harness_finds_a_wrong_value() -> None:
    def wrong(target):
        return lambda *args, **kwargs: target(*args, **kwargs) * 1.0000001

    (result, _) = check("ops", "exp", wrong)
    assert result.status is Status.FAILED
    assert "values differ" in result.reason


def test_the_harness_finds_a_function_that_was_not_compiled() -> None:
    def lazy(target):
        return lambda *args, **kwargs: target(*args, **kwargs)

    (result, _) = check("ops", "exp", lazy)
    assert result.status is Status.FAILED
    assert "not compiled" in result.reason
