"""Errors: capture names the user's line, the user's own errors pass through, threads do no harm."""

import concurrent.futures
import re
import threading
import warnings

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import assert_same, compiled, leaf, location, only_with_eager


def branch(x):
    if x.sum() > 0:
        return x * 2
    return x * 3


def loop(x):
    while x.norm() > 1:
        x = x / 2
    return x


def item(x):
    if x.mean().item() > 0:
        return x * 2
    return x * 3


def tolist(x):
    return x * len([v for v in x.cumsum(0).tolist() if v > 0])


def numpy(x):
    return x * x.detach().cos().numpy().sum()


def printed(x):
    print(x.cos())
    return x * 2


def formatted(x):
    return x * len(f"{x.prod():.3f}")


def mask(x):
    return x[x.cos() > 0] * 2


def nonzero(x):
    return x.nonzero() * 2


def iterated(x):
    return [x * i for i in range(x.argmax())]


def as_bool(x):
    return x * 2 if bool((x.exp() > 1).all()) else x


READS_DATA = {
    branch: ("x.sum() > 0", "bool[]"),
    loop: ("x.norm() > 1", "bool[]"),
    item: (".item()", "f32[]"),
    tolist: (".tolist()", "f32[4]"),
    numpy: (".numpy()", "f32[4]"),
    printed: ("print(", "f32[4]"),
    formatted: ("x.prod()", "f32[]"),
    mask: ("x[x.cos() > 0]", "index"),
    nonzero: ("nonzero()", "nonzero"),
    iterated: ("x.argmax()", "i64[]"),
    as_bool: ("bool((", "bool[]"),
}


@pytest.mark.parametrize("fn", READS_DATA, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("make", [leaf, torch.randn])
def test_reading_data_is_refused_with_the_line_and_the_value(fn, make):
    text, value = READS_DATA[fn]
    with pytest.raises(fg.CaptureError) as caught:
        compiled(fn, questions="error")(make(4))
    message = str(caught.value)
    assert re.search(location(fn, text), message), message
    assert value in message


@pytest.mark.parametrize("fn", READS_DATA, ids=lambda fn: fn.__name__)
def test_capture_refuses_as_compile_does(fn):
    with pytest.raises(fg.CaptureError):
        fg.capture(fn, torch.randn(4))


UNSUPPORTED = {
    "a generator": lambda x: (x * k for k in range(2)),
    "a set of tensors": lambda x: {x * 2},
    "a function over a tensor": lambda x: lambda y=x * 2: y,
}


@pytest.mark.parametrize("fn", UNSUPPORTED.values(), ids=UNSUPPORTED)
def test_an_unsupported_output_is_refused_by_its_type(fn):
    with pytest.raises(fg.CaptureError) as caught:
        compiled(fn)(leaf(2))
    assert re.search("generator|set|function", str(caught.value))


# What cannot be put down to one line inside the function is put down to its definition


def returns_a_set(x):
    return x, {"box": {x}}


def seeds(x):
    torch.manual_seed(3)
    return x * 2


def marks(x):
    x.seen = True
    return x * 2


STORE = []


def stores(x):
    STORE.append(x * 2)


def makes_a_leaf(x):
    made = torch.ones(2, requires_grad=True)
    return made, made * x


def replaces_memory(x):
    y = x * 2
    head = y[:1]
    y.data = torch.zeros(2)
    return y, head


def replaces_memory_by_that_of_an_input(x):
    y = torch.full((1,), 0.5)
    head = y[:1]
    y.set_(x.detach())
    return y, head


NESTED = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def takes(x, *, mask):
    return x * 2


with warnings.catch_warnings():  # torch calls them a beta
    warnings.simplefilter("ignore")
    SPARSE = torch.eye(2).to_sparse()

WITH_A_LINE = {
    "output": (returns_a_set, {}, "def returns_a_set", r"a set as result\[1\]\['box'\]"),
    "seed": (seeds, {}, "def seeds", "seeds the random"),
    "attribute": (marks, {}, "def marks", "'seen'"),
    "stored": (stores, {}, "def stores", "`STORE`"),
    "leaf": (makes_a_leaf, {}, "def makes_a_leaf", "a leaf that it made"),
    "old memory": (replaces_memory, {}, "y[:1]", "memory it replaced"),
    "memory before an input's": (replaces_memory_by_that_of_an_input, {}, "y[:1]", "memory it replaced"),
    "layout": (takes, {"mask": torch.eye(2).to_mkldnn()}, "def takes", "argument mask has the layout"),
    "sparse": (takes, {"mask": SPARSE.requires_grad_()}, "def takes", "argument mask has the layout"),
    "wrapper": (takes, {"mask": NESTED}, "def takes", "argument mask has the layout torch.jagged"),
}


@pytest.mark.parametrize(("fn", "kwargs", "at", "says"), WITH_A_LINE.values(), ids=WITH_A_LINE)
def test_every_refusal_names_a_line_of_the_user(fn, kwargs, at, says):
    STORE.clear()
    with pytest.raises(fg.CaptureError, match=says) as caught:
        compiled(fn)(torch.ones(2), **kwargs)
    assert re.search(location(fn, at), str(caught.value)), str(caught.value)


def test_a_tensor_from_outside_is_refused_with_the_line_that_uses_it():
    sparse = torch.eye(2).to_sparse().requires_grad_()
    x = torch.ones(3)

    def uses_sparse(x):
        y = x * 2
        return y @ sparse

    def reaches_beyond(head):
        return head + x.sum()

    for fn, value, at in ((uses_sparse, torch.ones(2, 2), "@ sparse"), (reaches_beyond, x[:2], "x.sum()")):
        with pytest.raises(fg.CaptureError) as caught:
            compiled(fn)(value)
        assert re.search(location(fn, at), str(caught.value)), str(caught.value)


def test_for_a_function_that_is_not_the_users_the_line_is_that_of_the_call():
    def calls():
        return compiled(torch.neg)(torch.eye(2).to_mkldnn())

    with pytest.raises(fg.CaptureError) as caught:
        calls()
    assert re.search(location(calls, "torch.neg"), str(caught.value)), str(caught.value)


def test_a_function_that_changes_what_it_reads_is_refused_with_its_line():
    count = 0

    def counts(x):
        nonlocal count
        count += 1
        return x * count

    with pytest.raises(fg.CaptureError) as caught:
        compiled(counts)(torch.ones(2))
    assert re.search(location(counts, "def counts"), str(caught.value)), str(caught.value)


def test_every_error_is_a_foregrad_error():
    assert issubclass(fg.CaptureError, fg.ForegradError)
    assert issubclass(fg.GuardError, fg.ForegradError)
    assert issubclass(fg.ForegradError, Exception)


def test_a_refused_function_can_be_called_again_and_others_are_not_harmed():
    f, g = compiled(branch, questions="error"), compiled(lambda x: x * 2)
    for _ in range(2):
        with pytest.raises(fg.CaptureError):
            f(torch.randn(2))
        assert g(torch.ones(2)).tolist() == [2.0, 2.0]


# The user's own errors


class MyError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def raise_own(x):
    y = x * 2
    raise MyError(y.shape[0])


FAILING = {
    "own class": raise_own,
    "value error": lambda x: (_ for _ in ()).throw(ValueError("no")),
    "shapes": lambda x: x @ torch.ones(5, 5),
    "dtype": lambda x: torch.ones(3, dtype=torch.int64) @ x,
    "index": lambda x: x[7],
    "attribute": lambda x: x.no_such_thing,
    "key": lambda x: {"a": x}["b"],
    "assertion": lambda x: torch.testing.assert_close(x.shape[0], 99),
    "no grad": lambda x: torch.autograd.grad(x.detach().sum(), x),
    "stop iteration": lambda x: next(iter(())),
}


@pytest.mark.parametrize("fn", FAILING.values(), ids=FAILING)
def test_the_users_exception_passes_unchanged(fn):
    assert_same(fn, lambda: (leaf(3),), calls=2)


def test_the_users_exception_is_the_very_object():
    error = MyError(7)

    def f(x):
        raise error

    with pytest.raises(MyError) as caught:
        compiled(f)(torch.ones(2))
    assert caught.value is error
    assert caught.value.code == 7


def test_an_exception_handled_inside_is_no_error():
    def f(x):
        try:
            return x @ torch.ones(5, 5)
        except RuntimeError:
            return x * 2

    assert_same(f, lambda: (leaf(3),), calls=2)


def test_state_is_untouched_after_an_exception():
    model, x = nn.BatchNorm1d(3), leaf(4, 3)

    def f(x):
        model(x)
        raise MyError(1)

    state = {name: t.clone() for name, t in model.state_dict().items()}
    versions = [t._version for t in model.state_dict().values()]
    with pytest.raises(MyError):
        fg.capture(f, x)
    assert all(torch.equal(state[name], t) for name, t in model.state_dict().items())
    assert [t._version for t in model.state_dict().values()] == versions
    assert x.grad is None
    assert torch.is_grad_enabled()
    assert type(model.running_mean) is torch.Tensor


# Bad arguments


def two(x, y, *, scale=1.0):
    return x * y * scale


CALLS = {
    "missing": ((), {}),
    "one missing": ((1,), {}),
    "too many": ((1, 2, 3), {}),
    "unknown keyword": ((1, 2), {"size": 3}),
    "given twice": ((1, 2), {"x": 3}),
    "wrong type": (("text", [1, 2]), {}),
}


@pytest.mark.parametrize(("args", "kwargs"), CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("is_captured_before", [True, False])
def test_bad_arguments_raise_what_eager_raises(args, kwargs, is_captured_before):
    f = compiled(two)
    if is_captured_before:
        f(torch.ones(2), torch.ones(2))
    errors = []
    for call in (two, f):
        with pytest.raises(TypeError) as caught:
            call(*args, **kwargs)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_bad_arguments_of_a_module_raise_what_eager_raises():
    assert_same(nn.Linear(2, 2), tuple)
    assert_same(nn.Linear(2, 2), lambda: (torch.ones(1, 2), 3))
    assert_same(nn.Linear(2, 2), lambda: (torch.ones(1, 5),))


def test_compile_refuses_what_cannot_be_called():
    with pytest.raises(TypeError):
        compiled(3)


# Threads


def in_threads(work, count=8):
    start = threading.Barrier(count)

    def run(number):
        start.wait()
        return work(number)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(1, count + 1)))


def gradient(f, number):
    x = torch.full((number,), 0.5, requires_grad=True)
    for _ in range(5):
        f(x).sum().backward()
    return x.grad


@only_with_eager("bitwise")
def test_one_compiled_function_called_first_from_eight_threads():
    def f(x):
        return x.sin() * x.shape[0]

    g = compiled(f)
    grads = in_threads(lambda number: gradient(g, number))
    assert all(torch.equal(grads[number - 1], gradient(f, number)) for number in range(1, 9))


@only_with_eager("bitwise")
def test_one_signature_from_eight_threads():
    def f(x):
        return x.sin().exp()

    g = compiled(f)
    grads = in_threads(lambda number: gradient(g, 3))
    assert all(torch.equal(grad, gradient(f, 3)) for grad in grads)


def test_capture_in_one_thread_does_not_disturb_eager_in_others():
    def work(number):
        if number % 2:
            return fg.capture(lambda x: (x.sin() * number).sum(), torch.ones(4)) is not None
        return all(torch.equal(torch.ones(4).sin() * 2, torch.ones(4).sin().mul_(2)) for _ in range(200))

    assert all(in_threads(work))


@only_with_eager("bitwise")
def test_backward_in_another_thread():
    f, x = compiled(lambda x: x.sin()), leaf(3)
    out = f(x).sum()
    thread = threading.Thread(target=out.backward)
    thread.start()
    thread.join()
    assert torch.equal(x.grad, x.detach().cos())


def test_a_higher_order_op_is_refused():
    def f(x):
        return torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, x, x)

    with pytest.raises(fg.CaptureError, match="higher-order op out_dtype"):
        compiled(f)(torch.ones(2, 2, dtype=torch.int8))
