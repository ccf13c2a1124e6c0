"""Whatever a function counts with: a compiled function counts as eager does, a step names what it does not count."""

import collections
import contextvars
import ctypes
import itertools
import multiprocessing
import threading
import types
import warnings
import weakref

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.behaviours import changing_helper
from tests.compare import compiled

X = torch.ones(3)


def attribute(holder):
    def count():
        holder.count += 1
        return holder.count

    return count


def entry(holder, key):
    def count():
        holder[key] += 1
        return holder[key]

    return count


def following(iterator):
    return lambda: next(iterator)


def variable_of_a_module():
    changing_helper.count = 0

    def count():
        changing_helper.count += 1
        return changing_helper.count

    return count


def object_in_a_module():
    changing_helper.count = types.SimpleNamespace(value=0)

    def count():
        changing_helper.count.value += 1
        return changing_helper.count.value

    return count


def private_attribute_of_a_layer():
    layer = nn.Linear(3, 1)
    layer._count = 0

    def count():
        layer._count += 1
        return layer._count

    return count


def private_dict_of_a_layer():
    layer = nn.Linear(3, 1)
    layer._counts = {"n": 0}

    def count():
        layer._counts["n"] += 1
        return layer._counts["n"]

    return count


def attribute_of_a_thread():
    local = threading.local()
    local.count = 0
    return attribute(local)


def attribute_of_a_thread_that_a_class_has():
    return attribute(type("Local", (threading.local,), {"count": 0})())


def variable_of_a_context():
    variable = contextvars.ContextVar("count", default=0)

    def count():
        variable.set(variable.get() + 1)
        return variable.get()

    return count


def weak_dict():
    key = types.SimpleNamespace()
    counts = weakref.WeakKeyDictionary({(holder := type("Key", (), {})()): 0})
    key.holder = holder

    def count():
        counts[key.holder] += 1
        return counts[key.holder]

    return count


def far_away():
    first = last = types.SimpleNamespace()
    for _ in range(8):
        last.inner = types.SimpleNamespace()
        last = last.inner
    last.count = 0

    def count():
        first.inner.inner.inner.inner.inner.inner.inner.inner.count += 1
        return first.inner.inner.inner.inner.inner.inner.inner.inner.count

    return count


def attribute_of_an_optimizer():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)
    optimizer.count = 0
    return attribute(optimizer)


def number_of_shared_memory():
    number = multiprocessing.Value("i", 0)

    def count():
        number.value += 1
        return number.value

    return count


def number_of_c():
    number = ctypes.c_int(0)

    def count():
        number.value += 1
        return number.value

    return count


def bound_method_of_an_iterator():
    step = itertools.count(1).__next__
    return lambda: step()


def loader():
    data = [torch.tensor(float(number)) for number in range(1, 9)]
    return following(iter(torch.utils.data.DataLoader(data, batch_size=None)))


COUNTERS = {
    made.__name__: made
    for made in (
        variable_of_a_module,
        object_in_a_module,
        private_attribute_of_a_layer,
        private_dict_of_a_layer,
        attribute_of_a_thread,
        attribute_of_a_thread_that_a_class_has,
        variable_of_a_context,
        weak_dict,
        far_away,
        attribute_of_an_optimizer,
        number_of_shared_memory,
        number_of_c,
        bound_method_of_an_iterator,
        loader,
    )
} | {
    "a dict of the user's": lambda: entry(collections.UserDict(n=0), "n"),
    "a chain of dicts": lambda: entry(collections.ChainMap({"n": 0}), "n"),
    "a view of bytes": lambda: entry(memoryview(bytearray(1)), 0),
    "a cycle": lambda: following(itertools.cycle([1, 2, 3])),
    "a cycle in its second round": lambda: following(itertools.islice(itertools.cycle([1, 2, 3]), 4, None)),
    "a chain": lambda: following(itertools.chain([1, 2], [3, 4], [5, 6])),
    "sums": lambda: following(itertools.accumulate(itertools.repeat(1))),
    "products": lambda: map(sum, itertools.product([1, 2, 3], [4, 6])).__next__,
    "a tee": lambda: following(itertools.tee(iter([1, 2, 3, 4]))[0]),
    "until": lambda: following(iter(attribute(types.SimpleNamespace(count=0)), 100)),
}


def told(call):
    return [float(call(X)[0]) for _ in range(4)]


@pytest.mark.parametrize("name", COUNTERS)
def test_a_compiled_function_counts_as_eager_does(name):
    ours, theirs = COUNTERS[name], COUNTERS[name]
    count = theirs()
    expected = told(lambda x: x * count())
    count = ours()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert told(compiled(lambda x: x * count())) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize("name", COUNTERS)
def test_a_step_says_that_it_does_not_count(name):
    model, count = nn.Linear(3, 1), COUNTERS[name]()

    @fg.step(model, backend="eager", cache=False)
    def train(x):
        return model(x).sum() * count()

    with pytest.warns(UserWarning, match="does in Python what its program does not repeat"):
        train(X)


def test_defaults_of_an_optimizer_that_a_step_changes_are_named():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @fg.step(model, optimizer, backend="eager", cache=False)
    def train(x):
        optimizer.defaults["lr"] *= 0.5
        return model(x).sum() * optimizer.defaults["lr"]

    with pytest.warns(UserWarning, match=r"optimizer.defaults was"):
        train(X)


def test_an_iterator_that_only_repeats_costs_no_capture():
    ones = itertools.repeat(1)
    call = compiled(lambda x: x * next(ones))
    assert told(call) == [1.0] * 4
    assert len(call.captures) == 1
