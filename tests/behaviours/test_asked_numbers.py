"""Numbers of `.item()` in Python: whatever is done with them, each call does it with its own, as eager does."""

import copy
import json
import math
import pickle
import statistics
from decimal import Decimal

import numpy
import pytest
import torch

import foregrad as fg
from tests.compare import BACKEND, assert_same, compiled, same_as_eager


def of(*values):
    return lambda: (torch.tensor(values, requires_grad=True),)


NUMBERS = [of(1.0, -2.5), of(3.0, 1.25), of(0.0, -0.0), of(math.nan, 1.0), of(math.inf, 1.0), of(1.0, -2.5)]


def total(x):
    return x.sum().item()


def first(x):
    return x[0].item()


USES = {
    "abs": lambda x: x * abs(total(x)),
    "round": lambda x: round(total(x), 1),
    "int": lambda x: int(total(x)),
    "text": lambda x: f"{total(x):.3f} {total(x)} {total(x)!r}",
    "floor": lambda x: x * math.floor(total(x)),
    "power": lambda x: x * total(x) ** 2,
    "divmod": lambda x: (divmod(total(x), 0.7), divmod(7.0, total(x))),
    "plus": lambda x: (+total(x), total(x).real, total(x).imag),
    "a chain": lambda x: 0 < total(x) <= 2.5,
    "sorted": lambda x: sorted([total(x), first(x), 0.5]),
    "sum": lambda x: x * sum([total(x), first(x)]),
    "max": lambda x: x * max(total(x), first(x), 0.5),
    "max with an integer": lambda x: (max(total(x), 1), min(0, first(x))),
    "a large integer": lambda x: (total(x) > 10**30, total(x) < 10**400, total(x) == 2**53 + 1, total(x) * 10**30),
    "too large an integer": lambda x: total(x) * 10**400,
    "in C": lambda x: (json.dumps(total(x)), str(Decimal(total(x))), float(numpy.exp(total(x)))),
    "with text": lambda x: total(x) + "text",
    "a key": lambda x: {float(total(x)): {total(x): 3}[total(x)]},
    "in a list": lambda x: total(x) in [0.0, 4.25],
    "a ratio": lambda x: first(x) / total(x),
    "a known tensor before": lambda x: x.index_select(0, torch.tensor([0, 1, 0])).sum().item() > 0,
    "a number of the program in an op before": lambda x: 1 if (x * total(x)).sum() > 1 else 2,
    "rsub": lambda x: torch.rsub(x, x, alpha=total(x)),
    "the base of a power": lambda x: abs(total(x)) ** x,
    "lerp": lambda x: torch.lerp(x, x * 2, total(x)),
    "celu": lambda x: torch.nn.functional.celu(-x, 1 + abs(first(x))),
    "xlogy": lambda x: torch.xlogy(x, 1 + abs(first(x))),
    "a power of x": lambda x: x ** total(x),
    "a norm": lambda x: x.norm(p=1 + abs(first(x))),
    "mean": lambda x: statistics.mean([total(x), first(x)]),
    "pickled": lambda x: pickle.loads(pickle.dumps(total(x))),
    "copied": lambda x: copy.deepcopy({"total": total(x)}),
    "an op of numbers before": lambda x: (x + torch.full((2,), first(x))).tolist(),
}


def test_a_number_as_a_key_of_a_result_is_refused():
    with pytest.raises(fg.CaptureError, match="as a key"):
        compiled(lambda x: {total(x): x})(torch.ones(3))


@pytest.mark.parametrize("use", USES)
def test_a_number_in_python(use):
    assert_same(USES[use], NUMBERS, calls=2)


class Averages(torch.nn.Module):
    average = 0.0

    def forward(self, x):
        self.average = 0.9 * self.average + total(x)
        return x * 2


@same_as_eager
def test_a_number_is_kept_in_an_attribute_of_a_module(wrap):
    module = Averages()
    f = wrap(module)
    return [(f(torch.full((3,), value)), module.average) for value in (1.0, 2.0, 1.0)]


@same_as_eager
def test_a_learning_rate_by_the_loss(wrap):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.param_groups[0]["lr"] = 0.1 * min(1.0, loss.item())
        optimizer.step()
        return loss.detach()

    train = fg.step(model, optimizer, backend=BACKEND)(step) if wrap(len) is not len else step
    return [(train(torch.full((2, 3), value)), optimizer.param_groups[0]["lr"]) for value in (1.0, 0.1, 2.0, 1.0)]


def test_a_number_that_stays_outside_is_refused_and_taken_out_again():
    kept, box = [], Averages()
    box.list = []

    def into_a_list(x):
        kept.append(total(x))
        return x * 2

    def into_an_object(x):
        box.list.append(total(x) * 2)
        return x * 2

    for function in (into_a_list, into_an_object):
        with pytest.raises(fg.CaptureError, match="outside itself"):
            compiled(function)(torch.ones(3))
    assert kept == box.list == []


def test_tensors_of_numbers_are_no_views_and_have_not_been_written():
    def function(x):
        number = total(x)
        return (
            torch.tensor([number, 1.0]),
            torch.tensor(number),
            torch.tensor([[x.detach().sum(), 2], [3, x.detach().max()]]),
            x.new_tensor([number]),
        )

    assert_same(function, NUMBERS, calls=2)
