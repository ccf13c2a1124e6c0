"""A fixed part of the sweeps, small enough for every test run; `python -m tests.conformance` is all."""

import importlib.util

import pytest

from . import judge
from .__main__ import check
from .compatibility import page
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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_a_class_of_transformers_with_a_configuration_made_from_its_name_trains_as_in_eager() -> None:
    assert_conforms("transformers", "image-classification ViTForImageClassification")


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
@pytest.mark.parametrize("name", ["causal-lm LlamaForCausalLM", "seq2seq-lm T5ForConditionalGeneration"])
def test_a_small_configuration_trains_in_eager(name: str) -> None:
    (result,) = check("transformers", name, judge.eager)
    assert (result.status, result.num_compared) == (Status.PASSED, 2), result.reason


def test_a_page_counts_what_all_have_tried() -> None:
    def found(**statuses):
        return {("task", name): {"status": status, "reason": "why"} for name, status in statuses.items()}

    text = page({"ours": found(A="passed", B="refused", C="passed"), "theirs": found(A="refused", B="passed")})
    assert "| task | 2 | 1, 1, 0 | 1, 1, 0 |" in text
    assert "- 1, refused: why\n  task B" in text


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
