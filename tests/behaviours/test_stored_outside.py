"""A tensor without data never stays outside the function: it is refused where it is stored, or stored at each call."""

import collections
import functools
import queue

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled, same_as_eager


class Box:
    pass


class Slotted:
    __slots__ = ("value",)


class Nested:
    def __init__(self):
        self.inner = Box()
        self.inner.table = {}


KEPT = {}


def keeps(y):
    KEPT["last"] = y


def keeps_in_a_variable(y):
    global LAST
    LAST = y


def in_a_slot(box, y):
    box.value = y


STORES = {
    "a list": ([], lambda kept, y: kept.append(y)),
    "a dict": ({}, lambda kept, y: kept.__setitem__("y", y)),
    "a set": (set(), lambda kept, y: kept.add(y)),
    "a deque of dicts of tuples": (collections.deque(maxlen=3), lambda kept, y: kept.append({"a": (y,)})),
    "a queue": (queue.Queue(), lambda kept, y: kept.put(y)),
    "an attribute": (Box(), lambda kept, y: setattr(kept, "value", y)),
    "a slot": (Slotted(), in_a_slot),
    "an object behind an object": (Nested(), lambda kept, y: kept.inner.table.setdefault("y", []).append(y)),
    "a closure": ([], lambda kept, y: kept.append(lambda: y)),
    "a dict of a helper's module": (None, lambda kept, y: keeps(y)),
    "a variable of a helper's module": (None, lambda kept, y: keeps_in_a_variable(y)),
    "an attribute of a tensor": (torch.ones(3), lambda kept, y: setattr(kept, "value", y)),
}


@pytest.mark.parametrize("where", STORES)
def test_a_tensor_that_the_function_stores_outside_is_refused(where):
    kept, store = STORES[where]

    def function(x):
        store(kept, x * 2)
        return x * 3

    with pytest.raises(fg.CaptureError, match="stores a tensor") as error:
        compiled(function)(torch.ones(3))
    assert "test_stored_outside.py" in str(error.value)


def test_a_refusal_takes_the_tensor_out_again():
    features, model = {}, nn.Sequential(nn.Linear(3, 2))
    model[0].register_forward_hook(lambda module, args, result: features.__setitem__("y", result.detach()))
    with pytest.raises(fg.CaptureError, match=r"stores a tensor f32\[1, 2\] in `Sequential"):
        compiled(model)(torch.ones(1, 3))
    assert features == {}


@same_as_eager
def test_a_table_in_a_cache_of_results_is_made_again(wrap):
    """What `lru_cache` keeps of a capture would have no data for whoever asks next."""

    @functools.lru_cache
    def table(length):
        return torch.arange(length).float()

    def function(x):
        return x + table(3)

    return wrap(function)(torch.ones(3)), function(torch.ones(3)), table(3)


WEIGHT = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    "make",
    [lambda: nn.Linear(3, 3).weight[0], lambda: nn.Linear(3, 3), lambda: torch.rand(3), lambda: WEIGHT / WEIGHT.norm()],
)
def test_what_each_call_would_make_otherwise_is_not_kept_in_a_cache_of_results(make):
    kept = functools.lru_cache(make)

    def function(x):
        one = kept()
        return one(x) if isinstance(one, nn.Module) else x * one

    with pytest.raises(fg.CaptureError, match="outside itself"):
        compiled(function)(torch.ones(3))


class Counts(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls, self.is_ready, self.seen = 0, False, None

    def forward(self, x):
        if not self.is_ready:
            self.is_ready = True
        self.calls += 1
        self.seen = x.shape[0]
        return x * self.calls


@same_as_eager
def test_an_attribute_that_forward_reads_and_changes_goes_on_changing(wrap):
    model = Counts()
    run = wrap(model)
    results = [run(torch.ones(2)) for _ in range(3)]
    return results, model.calls, model.is_ready, model.seen


@same_as_eager
def test_an_attribute_that_forward_only_sets_is_set_at_each_call(wrap):
    class Notes(nn.Module):
        def forward(self, x):
            self.length = x.shape[0]
            return x * 2

    model = Notes()
    run, lengths = wrap(model), []
    for x in (torch.ones(2), torch.ones(3), torch.ones(2)):
        run(x)
        lengths.append(model.length)
        model.length = None
    return lengths
