"""Writes of a kind of number that does not fit: torch refuses them, on tensors with data only for some ops."""

import pytest
import torch

import foregrad as fg

METHODS = [
    "add_",
    "sub_",
    "mul_",
    "div_",
    "pow_",
    "clamp_",
    "fmod_",
    "remainder_",
    "copysign_",
    "atan2_",
    "maximum",
    "fill_",
]
DTYPES = [torch.bool, torch.int64, torch.float32, torch.complex64]
OPERANDS = [True, 2, 2.5, 1j, *(torch.ones(3).to(dtype) for dtype in DTYPES)]


def outcome(function, *args):
    try:
        return function(*args).tolist()
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("method", METHODS)
def test_what_a_write_is_or_raises_goes_by_the_kinds_of_numbers(method, dtype):
    """`mul_` of integers by 2.5 was captured, and gave the result cut off."""

    def f(x, operand):
        return getattr(x.clone(), method)(operand)

    for operand in OPERANDS:
        x = torch.tensor([1, 0, 1]).to(dtype)
        expected, actual = outcome(f, x, operand), outcome(fg.compile(f, backend="eager", cache=False), x, operand)
        assert repr(actual) in (repr(expected), repr(fg.CaptureError)), operand  # NaN as it is written


@pytest.mark.parametrize("value", [2.5, torch.tensor(2.5)])
def test_such_a_write_among_several_tensors(value):
    def f(x, y):
        torch._foreach_mul_([x, y], value)
        return x

    for function in (f, fg.compile(f, backend="eager", cache=False)):
        assert outcome(function, torch.ones(2), torch.ones(2, dtype=torch.int64)) is RuntimeError


def test_products_that_are_added_and_do_not_fit():
    def f(x, y):
        return x.clone().addcmul_(y, y)

    for function in (f, fg.compile(f, backend="eager", cache=False)):
        assert outcome(function, torch.ones(2, dtype=torch.int64), torch.ones(2)) is RuntimeError
