"""Objects of Python's that a function changes are changed at each call, as in eager: its programs hold for one call."""

import collections
import dataclasses
import gc
import itertools
import os
import queue
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import FOUND
from foregrad.record.python.outside_objects import Outside
from tests.compare import compiled

X = torch.ones(3)


@dataclasses.dataclass
class State:
    count: int = 0
    inner: object = None


class Slotted:
    __slots__ = ("count",)

    def __init__(self):
        self.count = 0


class Of:
    count = 0


COUNT = 0


def object_read_and_changed(state, x):
    state.count += 1
    return x * state.count


def object_only_written(state, x):
    state.count = x.shape[0]
    return x * 2


def object_behind_an_object(state, x):
    state.inner.count += 1
    return x * state.inner.count


def dict_read_and_changed(stats, x):
    stats["n"] += 1
    return x * stats["n"]


def dict_only_written(stats, x):
    stats["n"] = 5
    return x * 2


def list_that_grows(history, x):
    history.append(1.5)
    return x * 2


def list_whose_length_counts(history, x):
    history.append(1)
    return x * len(history)


def deque_that_turns(window, x):
    window.append(len(window))
    return x * sum(window)


def set_that_grows(seen, x):
    seen.add(len(seen))
    return x * len(seen)


def array_in_place(array, x):
    array += 1
    return x * float(array[0])


def bytes_in_place(held, x):
    held[0] += 1
    return x * held[0]


def queue_that_empties(held, x):
    return x * held.get()


def array_item(array, x):
    array[1] = array[0] + array[1]
    return x * float(array[1])


def class_attribute(cls, x):
    cls.count += 1
    return x * cls.count


def global_variable(_, x):
    global COUNT
    COUNT += 1
    return x * COUNT


def in_a_helper(state, x):
    return object_read_and_changed(state, x) + 1


def through_setattr(state, x):
    setattr(state, "count", getattr(state, "count") + 1)  # noqa: B009, B010
    return x * state.count


def in_a_container(states, x):
    states[0].count += 1
    return x * states[0].count


def taken_away(history, x):
    return x * history.pop()


def filled():
    made = queue.Queue()
    for number in range(5):
        made.put(number)
    return made


CASES = {
    object_read_and_changed: State,
    object_only_written: State,
    object_behind_an_object: lambda: State(inner=State()),
    dict_read_and_changed: lambda: {"n": 0},
    dict_only_written: dict,
    list_that_grows: list,
    list_whose_length_counts: list,
    deque_that_turns: lambda: collections.deque(maxlen=3),
    set_that_grows: set,
    array_in_place: lambda: np.zeros(2),
    bytes_in_place: lambda: bytearray(3),
    queue_that_empties: filled,
    array_item: lambda: np.ones(2),
    class_attribute: lambda: type("Made", (Of,), {"count": 0}),
    global_variable: lambda: None,
    in_a_helper: State,
    through_setattr: State,
    in_a_container: lambda: [State(), State()],
    taken_away: lambda: [4, 3, 2, 1],
}
NAMES = {case.__name__: case for case in (*CASES, *[])}


def seen(holder):
    inner = getattr(holder, "inner", None)
    first = holder[0] if isinstance(holder, list) and holder else None
    shown = [getattr(one, "count", None) for one in (holder, inner, first) if isinstance(one, (State, Slotted, type))]
    if isinstance(holder, queue.Queue):
        return holder.qsize()
    return (*shown, None if isinstance(holder, (type, State, Slotted)) else str(holder))


def story(wrap, case, how):
    global COUNT
    COUNT, holder = 0, CASES[case]()
    if how == "argument":
        call = wrap(case)
        run = lambda x: call(holder, x)  # noqa: E731
    elif how == "closure":
        run = wrap(lambda x: case(holder, x))
    else:

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.held = [holder]

            def forward(self, x):
                return case(self.held[0], x)

        run = wrap(Model())
    told = [(run(X * factor)[0].item(), seen(holder)) for factor in (1, 1, 2)]
    return told, COUNT


@pytest.mark.parametrize("how", ["argument", "closure", "module"])
@pytest.mark.parametrize("name", NAMES)
def test_what_a_function_changes_in_python_it_changes_at_each_call(name, how):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert story(compiled, NAMES[name], how) == story(lambda f: f, NAMES[name], how)


def test_the_environment_is_changed_at_each_call(monkeypatch):
    def f(x):
        os.environ["FOREGRAD_COUNT"] = str(int(os.environ["FOREGRAD_COUNT"]) + 1)
        return x * int(os.environ["FOREGRAD_COUNT"])

    monkeypatch.setenv("FOREGRAD_COUNT", "0")
    call = compiled(f)
    assert [call(X)[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert os.environ["FOREGRAD_COUNT"] == "3"


ITERATORS = {
    "count": lambda: itertools.count(1),
    "list": lambda: iter([1, 2, 3, 4]),
    "range": lambda: iter(range(1, 9)),
    "enumerate": lambda: map(sum, enumerate([1, 1, 1, 1])),
    "generator": lambda: (number for number in [3, 4, 5]),
    "zip": lambda: map(sum, zip([1, 2, 3], [4, 5, 6], strict=True)),
}


@pytest.mark.parametrize("name", ITERATORS)
def test_an_iterator_goes_on_at_each_call(name):
    ours, theirs = ITERATORS[name](), ITERATORS[name]()
    call = compiled(lambda x: x * next(ours))
    assert [call(X)[0].item() for _ in range(3)] == [(X * next(theirs))[0].item() for _ in range(3)]


def test_tensors_taken_out_of_a_list_that_was_given_are_taken_out():
    def f(states):
        return states.pop() * 2 + len(states)

    ours, theirs = [X, X * 2, X * 3], [X, X * 2, X * 3]
    call = compiled(f)
    for _ in range(3):
        assert torch.equal(call(ours), f(theirs))
        assert [one is other for one, other in zip(ours, theirs, strict=True)] == [True, False, False][: len(theirs)]


def test_a_batch_that_labels_are_taken_from_needs_one_capture():
    def loss_of(batch, extra=None):
        labels = batch.pop("labels")
        batch["more"] = [batch["x"], {"n": 1}]
        return (batch["x"] - labels).square().sum()

    call = compiled(loss_of)
    for factor in (1, 2, 3):
        ours, theirs = ({"x": X * factor, "labels": X} for _ in range(2))
        assert torch.equal(call(ours), loss_of(theirs))
        assert list(ours) == list(theirs) == ["x", "more"]
        assert ours["more"][0] is ours["x"]
        assert ours["more"][1] == {"n": 1}
    assert len(call.captures) == 1


def test_a_dict_of_options_that_is_changed_needs_one_capture():
    def f(x, options):
        options["seen"] = options.pop("n") + 1
        return x * options["seen"]

    call = compiled(f)
    for _ in range(3):
        options = {"n": 1}
        assert call(X, options).tolist() == [2.0] * 3
        assert options == {"seen": 2}
    assert len(call.captures) == 1


def test_a_tensor_put_into_a_list_that_was_given():
    call = compiled(lambda x, kept: kept.append(x * 2))
    for factor in (1, 2):
        kept = []
        call(X * factor, kept)
        assert torch.equal(kept[0], X * factor * 2)
    assert len(call.captures) == 1


def test_a_nonlocal_variable_of_a_helper_is_changed_at_each_call():
    def make():
        count = 0

        def helper(x):
            nonlocal count
            count += 1
            return x * count

        return lambda x: helper(x) + 1

    ours, theirs = compiled(make()), make()
    assert [ours(X)[0].item() for _ in range(3)] == [theirs(X)[0].item() for _ in range(3)]


def test_a_flag_that_is_set_once_costs_one_more_capture():
    state = State()

    def f(x):
        if not state.count:
            state.count = 1
        return x * 2

    call = compiled(f)
    for _ in range(5):
        call(X)
    assert len(call.captures) == 2
    assert "state.count was 0, is 1" in call.captures[1].reason
    assert "for one call: state.count was 0, is 1" in str(fg.explain(call))


def test_what_the_function_makes_itself_it_may_change():
    def fill(table, x):
        table["n"] = 1
        table["n"] += 1
        return x * table["n"]

    def f(x):
        table, rows, state = {}, [], State()
        state.count += 1
        rows.append(fill(table, x))
        return rows[0] * state.count

    call = compiled(f)
    assert [call(X)[0].item() for _ in range(3)] == [2.0] * 3
    assert len(call.captures) == 1


def test_captures_for_one_call_are_spoken_of_and_do_not_pile_up():
    state = State()
    call = compiled(lambda x: object_read_and_changed(state, x))
    with pytest.warns(UserWarning, match=r"captured 8 times[\s\S]*state.count was 6, is 7"):
        results = [call(X)[0].item() for _ in range(30)]
    assert results == list(range(1, 31))
    assert len(call.captures) < 20


def test_gradients_of_a_call_that_changes_something_are_its_own():
    state, x = State(), torch.ones(3, requires_grad=True)
    call = compiled(lambda x: object_read_and_changed(state, x) * x)
    first, second = call(x), call(x)
    second.sum().backward()
    first.sum().backward()
    assert x.grad.tolist() == [6.0] * 3


def test_a_refused_capture_takes_changes_back():
    state = State()

    def f(x):
        state.count += 1
        return x * 2 if x.sum() > 0 else x

    with pytest.raises(fg.CaptureError):
        compiled(f, questions="error")(X)
    assert state.count == 0


def test_a_step_names_what_it_changes_in_objects():
    state, model = State(), nn.Linear(3, 1)

    @fg.step(model, backend="eager")
    def train(x):
        state.count += 1
        return model(x).sum()

    with pytest.warns(UserWarning, match=r"state.count was 0, is 1 at .*test_changed_outside"):
        train(X)


def test_a_print_is_named_once(capsys):
    def f(x):
        print("here")
        return x * 2

    call = compiled(f)
    with pytest.warns(UserWarning, match=r"print at .*test_changed_outside") as caught:
        call(X), call(torch.ones(4)), call(X)
    assert len(caught) == 1
    assert "at capture only: print at" in str(fg.explain(call))
    assert capsys.readouterr().out == "here\n" * sum(made.origin.how != FOUND for made in call.captures)


Pair = collections.namedtuple("Pair", "first second")


def test_methods_that_python_writes_for_named_tuples_change_nothing():
    """Torch puts its symbols into named tuples, and changes what these remember of themselves: it was refused then."""
    outside, frames = Outside(), []

    def follow(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == "<string>":
            frames.append(frame.f_code.co_name)
            outside.begins(frame)

    remembered = {"before": 1}
    gc.collect()  # what is young may change
    sys.setprofile(follow)
    try:
        Pair(remembered, 2)
    finally:
        sys.setprofile(None)
    remembered["later"] = 2
    assert frames
    assert not list(outside.changed())
