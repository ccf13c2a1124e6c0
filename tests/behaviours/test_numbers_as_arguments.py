"""Numbers among the arguments that change between calls: inputs of one program, as numbers of declared state are."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import also_compiled, compiled, leaf


def check(function, numbers, captures, make=lambda: leaf(3)):
    """Results, their dtypes and gradients are eager's, for each number."""
    wrapped = compiled(function)
    for number in numbers:
        x = make()
        y = x.detach().clone().requires_grad_(x.requires_grad)
        found, expected = wrapped(x, number), function(y, number)
        assert type(found) is type(expected)
        pairs = [(found, expected)] if isinstance(found, torch.Tensor) else list(zip(found, expected, strict=True))
        for one, other in pairs:
            if isinstance(other, torch.Tensor):
                assert one.dtype == other.dtype
                assert torch.equal(one, other) or (one != one).any()
                if other.requires_grad:
                    (gradient,) = torch.autograd.grad(one.sum(), x, retain_graph=True)
                    (wanted,) = torch.autograd.grad(other.sum(), y, retain_graph=True)
                    assert torch.equal(gradient, wanted)
            else:
                assert (type(one), repr(one)) == (type(other), repr(other))
    assert len(wrapped.captures) == captures
    return wrapped


FLOATS = (0.1, 0.3, -2.0, 1e-9, 0.1, 7.5)
INTS = (3, 5, -2, 10**6, 0, 3)


@pytest.mark.parametrize("numbers", [FLOATS, INTS], ids=["floats", "ints"])
@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * n,
        lambda x, n: n - x.sin() / 3,
        lambda x, n: (x * n + n) * (n * 2 + 1),
        lambda x, n: torch.where(x > n, x, n),
        lambda x, n: (x.clamp(min=n), n + 1),
        lambda x, n: torch.full((2,), n) * x.sum(),
        lambda x, n: x * torch.tensor(n),
        lambda x, n: x.addcmul(x, x, value=n),
        lambda x, n: x.masked_fill(x > 0, n),
        lambda x, n: (x * n, [n, n * n], {"n": -n})[0],
        lambda x, n: x * math.cos(n) * abs(n),
    ],
)
def test_one_program_for_all(function, numbers):
    try:
        function(torch.ones(3), numbers[0])
    except RuntimeError:
        pytest.skip("eager refuses it")
    check(function, numbers, 2)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int8, torch.bool, torch.float16, torch.float64, torch.complex64])
@pytest.mark.parametrize("numbers", [FLOATS[:3], (3, 5, -2)], ids=["floats", "ints"])
def test_dtypes_are_promoted_as_in_eager(dtype, numbers):
    check(lambda x, n: (x * n, x + n, n / (x + 1)), numbers, 2, lambda: torch.ones(3).to(dtype))


@also_compiled
def test_compiled_backends_take_them():
    def weighs(x, n, count):
        return ((x * n).sin() + count * x.exp()).sum() * n

    function = compiled(weighs)
    for n, count in ((0.5, 1), (0.25, 2), (3.0, 3)):
        x = leaf(5)
        y = x.detach().clone().requires_grad_()
        found, expected = function(x, n, count), weighs(y, n, count)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found, x)[0], torch.autograd.grad(expected, y)[0])
    assert len(function.captures) == 2


def test_the_first_value_is_a_constant():
    function = compiled(lambda x, n: x * n)
    for _ in range(3):
        function(torch.ones(3), 2.0)
    assert len(function.captures) == 1
    function(torch.ones(3), 3.0)
    assert fg.explain(function).captures[1].reason == "n was 2.0, is any float"
    assert "n may be any float" in str(fg.explain(function))


def test_another_type_is_another_program():
    check(lambda x, n: x * n, (2.0, 3.0, 4.0), 2, lambda: torch.ones(3, dtype=torch.int64))
    function = compiled(lambda x, n: x * n)
    x = torch.ones(3, dtype=torch.int64)
    for n in (1, 2.5, 2, 3.5, True, False, 7, 8.5):
        assert function(x, n).dtype == (x * n).dtype
        assert torch.equal(function(x, n), x * n)


def test_a_branch_is_a_guard():
    def branches(x, step):
        return x * step if step > 10 else x / (step + 1)

    check(branches, (1, 2, 3, 11, 12, 13, 4, 20), 3)


RANGES = {
    "range": lambda x, n: sum((x * i for i in range(n)), x),
    "index": lambda x, n: x[n],
    "slice": lambda x, n: x[:n] * 2,
    "key": lambda x, n: x * {1: 2.0, 2: 3.0, 3: 4.0}[n],
    "shape": lambda x, n: torch.zeros(n, 2) + x.sum(),
    "repeat": lambda x, n: x.repeat(n),
    "arange": lambda x, n: torch.arange(0.0, n, 0.5) * x.sum(),
    "list": lambda x, n: x * len([1] * n),
    "text": lambda x, n: x * len(f"{n}"),
    "bits": lambda x, n: x * (n & 2),
    "power": lambda x, n: x**n,
    "roll": lambda x, n: x.roll(n),
    "sum": lambda x, n: x.view(1, 5, 1).sum(n - 1),
    "type": lambda x, n: x * 2 if type(n) is int else x * 3,
    "formula": lambda x, n: torch.add(x, x.cos(), alpha=n),  # the formula of its gradient asks whether it is 1
}


@pytest.mark.parametrize("function", RANGES.values(), ids=RANGES)
def test_where_python_needs_the_value_there_is_a_program_for_each(function):
    wrapped = check(function, (1, 2, 3, 1, 2, 3), 3, lambda: leaf(5))
    said = str(fg.explain(wrapped))
    assert "n stays as it is: " in said or "as long as n - 1 is " in said


def test_a_float_that_decides_a_shape():
    check(lambda x, end: torch.arange(0.0, end, 0.5) + x.sum(), (1.0, 2.0, 3.0, 1.0), 3)
    check(
        lambda x, scale: nn.functional.interpolate(x.view(1, 1, 4), scale_factor=scale),
        (1.0, 2.0, 3.0, 1.0),
        3,
        lambda: leaf(4),
    )


def test_a_power_that_changes_its_type():
    check(lambda x, n: x * 2**n, (2, 3, -1, -2, 4), 3, lambda: torch.ones(3, dtype=torch.int64))


def test_numbers_in_containers_and_objects():
    class Options:
        def __init__(self, x, scale):
            self.x, self.scale, self.seen = x, scale, 0

    def reads(x, options, given):
        given.seen = given.scale
        options["last"] = options["lr"]
        return x * options["lr"] + options["steps"][0] * given.scale, options["lr"] * 2

    function = compiled(reads)
    for number in range(5):
        x = leaf(3)
        (mine, theirs) = ({"lr": 0.1 * number, "steps": [number]} for _ in range(2))
        one, other = Options(x, number + 1.5), Options(x, number + 1.5)
        found, expected = function(x, mine, one), reads(x, theirs, other)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
        assert mine == theirs
        assert one.seen == other.seen
        assert type(one.seen) is float
    assert len(function.captures) == 2


def test_numbers_by_name_and_beside_sizes():
    def scales(x, *, lr, step=0):
        return x * lr + step

    function = compiled(scales)
    for length in (3, 4, 5, 6):
        x = leaf(length)
        assert torch.equal(function(x, lr=0.1 * length, step=length), scales(x, lr=0.1 * length, step=length))
    assert len(function.captures) == 2


def test_second_derivatives_and_partial_backwards():
    def two(x, n):
        return (x * n).sin() * n, x.exp() * n

    function = compiled(two)
    for n in (0.5, 0.25, 3.0, 4.0):
        x = leaf(3)
        for run in (function, two):
            first, second = run(x, n)
            (partial,) = torch.autograd.grad(second.sum(), x, retain_graph=True)
            (gradient,) = torch.autograd.grad((first.sum() + second.sum()), x, create_graph=True)
            (again,) = torch.autograd.grad(gradient.square().sum(), x)
            if run is function:
                found = partial, gradient, again
            else:
                for one, other in zip(found, (partial, gradient, again), strict=True):
                    torch.testing.assert_close(one, other)
    assert len(function.captures) == 2


def test_a_custom_function_keeps_a_number():
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.n = n
            return x * n

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.n * 2, None

    check(lambda x, n: Scale.apply(x, n), (0.5, 0.25, 3.0), 2)


def test_a_backward_that_needs_the_value():
    class Rolls(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.n = n
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.roll(ctx.n) * torch.arange(3.0), None

    check(lambda x, n: Rolls.apply(x, n) * torch.arange(3.0), (1, 2, 3, 1), 3)


def test_one_number_that_must_be_known_leaves_the_others_inputs():
    function = compiled(lambda x, n, lr: x**n * lr)
    for n, lr in ((2, 0.5), (2, 0.25), (3, 0.1), (3, 0.2), (2, 0.7), (3, 0.9)):
        x = leaf(3)
        y = x.detach().clone().requires_grad_()
        found, expected = function(x, n, lr), y**n * lr
        assert torch.equal(found, expected)
        assert torch.equal(*(torch.autograd.grad(r.sum(), t)[0] for r, t in ((found, x), (expected, y))))
    assert len(function.captures) == 3


def test_a_custom_op_may_give_a_shape_by_a_number():
    with torch.library._scoped_library("foregrad_numbers", "FRAGMENT") as library:
        library.define("longer(Tensor x, float by) -> Tensor")
        library.impl("longer", lambda x, by: x.new_ones(int(len(x) * by)), "CompositeExplicitAutograd")
        check(lambda x, by: torch.ops.foregrad_numbers.longer(x, by), (1.0, 2.0, 3.0, 1.0), 3, lambda: torch.ones(3))


KEPT = []


def test_a_number_that_is_kept_outside_is_a_number():
    def keeps(x, n):
        KEPT.append(n)
        return x * n

    function = compiled(keeps)
    for n in (1.5, 2.5, 3.5):
        assert torch.equal(function(torch.ones(3), n), torch.ones(3) * n)
    assert KEPT == [1.5, 2.5, 3.5]
    assert {type(n) for n in KEPT} == {float}


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = 0.0

    def forward(self, x, n):
        self.last = n * 2
        return x * n


def test_a_number_that_a_module_keeps():
    model = Counter()
    function = compiled(model)
    for n in (1.5, 2.5, 3.5):
        function(torch.ones(3), n)
        assert model.last == n * 2
        assert type(model.last) is float


def test_an_error_is_eagers():
    def divides(x, n):
        return x * (1 / n)

    function = compiled(divides)
    for n in (1.0, 2.0):
        function(torch.ones(3), n)
    with pytest.raises(ZeroDivisionError):
        function(torch.ones(3), 0.0)


def test_a_step_takes_them():
    def make():
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def train(model, optimizer, x, weight, step):
        optimizer.zero_grad()
        loss = model(x).square().mean() * weight
        if step > 2:
            loss = loss + weight
        loss.backward()
        optimizer.step()
        return loss, weight * step

    (model, optimizer), (mirror, its) = make(), make()
    step = fg.step(model, optimizer, backend="eager", cache=False)(
        lambda x, weight, step: train(model, optimizer, x, weight, step)
    )
    for number in range(8):
        x = torch.randn(4, 3)
        found, expected = step(x, 0.1 * number, number), train(mirror, its, x, 0.1 * number, number)
        assert torch.equal(found[0], expected[0])
        assert found[1] == expected[1]
    assert torch.equal(model.weight, mirror.weight)
    assert len(step.captures) <= 4


def test_a_file_holds_them(tmp_path):
    function, x = compiled(lambda x, n: (x * n).sum()), leaf(3)
    for n in (1.5, 2.5):
        function(x, n)
    function.save(tmp_path / "numbers.fg")
    loaded = fg.load(tmp_path / "numbers.fg")
    y = leaf(3)
    result = loaded(y, 4.5)
    assert torch.equal(result, (y * 4.5).sum())
    assert torch.autograd.grad(result, y)[0].tolist() == [4.5] * 3


def test_a_cache_keeps_the_other_programs(tmp_path):
    function = fg.compile(lambda x, n: x * n, backend="eager", cache=tmp_path / "cache")
    for n in (1.5, 2.5, 3.5):
        assert torch.equal(function(torch.ones(3), n), torch.ones(3) * n)
    assert len(function.captures) == 2
    again = fg.compile(copy.copy(function._target), backend="eager", cache=tmp_path / "cache")
    for n in (1.5, 2.5, 3.5):
        assert torch.equal(again(torch.ones(3), n), torch.ones(3) * n)


def peak(x):
    return x.detach().max().item()


BESIDE_DATA = {
    "branch": lambda x, t: x * 2 if t < peak(x) else -x,
    "branch the other way": lambda x, t: x * 2 if peak(x) >= t else -x,
    "sum": lambda x, t: x * (t + peak(x)),
    "difference": lambda x, t: x * (t - peak(x)),
    "product": lambda x, t: x * sum([t * peak(x), t]),
    "ratio": lambda x, t: x * (t / peak(x)),
    "the other ratio": lambda x, t: x * (peak(x) / t),
    "power": lambda x, t: x * abs(t) ** peak(x),
    "the other power": lambda x, t: x * peak(x) ** t,
    "floor": lambda x, t: x * (t // peak(x)),
    "rest": lambda x, t: x * (peak(x) % t),
    "largest": lambda x, t: x * max(t, peak(x)),
    "equal": lambda x, t: x if t == peak(x) else x * 2,
}


@pytest.mark.parametrize("name", BESIDE_DATA)
def test_a_number_beside_a_number_of_data(name):
    function = BESIDE_DATA[name]
    wrapped = compiled(function)
    for value in (2.0, 0.5, 3.0):
        for number in (0.1, 0.6, 0.9, 3.0, 0.6):
            x = torch.tensor([value, 0.25], requires_grad=True)
            found, expected = wrapped(x, number), function(x, number)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
            assert torch.autograd.grad(found.sum(), x)[0].allclose(torch.autograd.grad(expected.sum(), x)[0])


def test_a_number_beside_a_number_of_data_is_one_program():
    wrapped = compiled(lambda x, t: x * (t * peak(x) - t))
    for number in (0.1, 0.6, 0.9, 3.0, 0.7):
        wrapped(leaf(3), number)
    assert len(wrapped.captures) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x * (-1) ** n,
        lambda x, n: x * (-2.0) ** n,
        lambda x, n: x * -(n**2),
        lambda x, n: x * (-3 - n) * (n - -3),
        lambda x, n: x * (-7 // n) * (-7 % n),
    ],
)
def test_negative_constants(function):
    wrapped = compiled(function)
    for n in (1, 2, 3, 4, 5):
        assert torch.equal(wrapped(torch.ones(1), n), function(torch.ones(1), n))


def test_negative_constants_beside_sizes():
    def function(x):
        return x * (-2.0) ** x.shape[0] + (-1) ** x.shape[0]

    wrapped = fg.compile(function, backend="eager", dynamic=True)
    for n in (2, 3, 4, 5):
        assert torch.equal(wrapped(torch.ones(n)), function(torch.ones(n)))


def test_a_number_as_a_key_is_pythons():
    def function(x, k, kept):
        kept[k], kept["of", k] = x * k, 1
        return {k: x, ("a", k): k}

    wrapped = compiled(function)
    for k in (0.1, 0.2, 0.3, 0.2):
        kept = {}
        found = wrapped(torch.ones(2), k, kept)
        assert [type(one) for one in (*found, *kept)] == [float, tuple, float, tuple]
        assert list(found) == [k, ("a", k)]
        assert all(type(part) in (str, float) for key in (*found, *kept) if type(key) is tuple for part in key)
        assert pickle.loads(pickle.dumps(list(kept))) == [k, ("of", k)]


NUMPY = {
    "a range": lambda x, n: (x * n, np.arange(n).tolist()),
    "a mean": lambda x, n: (x * n, torch.as_tensor(np.mean([n, 1]))),
    "a number of NumPy's": lambda x, n: (x * n, float(np.float32(3) * n), float(n * np.float32(3))),
    "an array": lambda x, n: x * torch.from_numpy(n * np.ones(3, dtype=np.float32)),
    "signs": lambda x, n: (x * n, np.sign(n).item(), np.asarray(n).dtype.name),
}


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("of_data", [False, True])
def test_numpy_computes_with_the_number_itself(name, of_data):
    function = NUMPY[name]
    if of_data:
        f = compiled(lambda x, t: function(x, t.sum().item()))
    else:
        f = compiled(function)
    for n in (1.5, 2.5, 0.1, 0.1):
        given = torch.tensor([n], dtype=torch.float64) if of_data else n
        found, expected = f(torch.ones(3), given), function(torch.ones(3), n)
        assert repr(found) == repr(expected)


def test_keys_and_sizes_are_no_symbols():
    f = compiled(lambda x, lr, n: (x * lr, {lr: "k", ("a", n): 1}, torch.Size([n, 2])))
    for n in (1, 2, 3):
        _, named, size = f(torch.ones(3), n / 10, n)
        assert [type(key) for key in named] == [float, tuple]
        assert type(list(named)[1][1]) is int
        assert [type(one) for one in size] == [int, int]
