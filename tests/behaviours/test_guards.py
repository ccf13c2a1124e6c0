"""What a capture assumed is checked at each call: a change captures again and never gives a wrong answer."""

import collections
import dataclasses
import functools

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import also_compiled, assert_same, compiled, grads_of, leaf, only_with_eager, same_as_eager


def num_captures(f):
    return len(fg.explain(f).captures)


def generic(x):
    """A program into which every property of `x` goes."""
    return x.sum() * x.shape[-1] + x.stride(-1), x.reshape(-1) * 2, x.dtype, x.requires_grad


# Tensors among the arguments

TENSORS = {
    "shape": [lambda: (leaf(4),), lambda: (leaf(6),)],
    "size one": [lambda: (leaf(4),), lambda: (leaf(1),)],
    "empty": [lambda: (leaf(4),), lambda: (leaf(0),)],
    "rank": [lambda: (leaf(4),), lambda: (leaf(2, 2),)],
    "stride": [lambda: (leaf(3, 3),), lambda: (leaf(3, 3).t(),)],
    "memory format": [lambda: (leaf(1, 2, 3, 3),), lambda: (leaf(1, 3, 3, 2).permute(0, 3, 1, 2),)],
    "dtype": [lambda: (leaf(4),), lambda: (leaf(4, dtype=torch.float64),)],
    "requires_grad": [lambda: (leaf(4),), lambda: (torch.randn(4),)],
    "leaf or not": [lambda: (leaf(4),), lambda: (leaf(4).clone(),)],
    "parameter or tensor": [lambda: (leaf(4),), lambda: (nn.Parameter(torch.randn(4)),)],
    "view or not": [lambda: (torch.randn(4),), lambda: (torch.randn(4, 2)[:, 0],)],
    "offset": [lambda: (torch.randn(4),), lambda: (torch.randn(6)[2:],)],
    "conjugate": [
        lambda: (leaf(4, dtype=torch.complex64),),
        lambda: (leaf(4, dtype=torch.complex64).conj(),),
    ],
}


@pytest.mark.parametrize("makers", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("is_reversed", [False, True], ids=["", "reversed"])
def test_a_tensor_with_another(makers, is_reversed):
    assert_same(generic, makers[::-1] if is_reversed else makers, calls=2)


def test_the_same_signature_is_captured_once():
    f = assert_same(lambda x, k: x.sin() * k, lambda: (leaf(3), 2), calls=4)
    assert num_captures(f) == 1


def test_a_signature_seen_before_is_not_captured_again():
    makers = [lambda: (leaf(3), 2), lambda: (leaf(3), 3)]
    f = assert_same(lambda x, k: x.sin() * k, makers, calls=3)
    assert num_captures(f) == 2


def test_a_new_capture_says_why():
    f = compiled(lambda x, k: x.sin() * k)
    f(leaf(3), 2)
    f(leaf(3), 5)
    f(torch.randn(3), 2)
    reasons = [capture.reason for capture in fg.explain(f).captures]
    assert len(reasons) == 3
    assert "k" in reasons[1]
    assert "x" in reasons[2]


# Ambient state


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@same_as_eager
def test_grad_mode(wrap, mode):
    f, x = wrap(lambda x: x * 2), leaf(2)
    results = [f(x)]
    with mode():
        results.append(f(x))
    return results, f(x)


@same_as_eager
def test_autocast_and_its_dtype(wrap):
    f, x = wrap(lambda x: x @ x), leaf(2, 2)
    results = [f(x)]
    for options in ({"dtype": torch.bfloat16}, {"dtype": torch.float16}, {"enabled": False}):
        with torch.autocast("cpu", **options):
            results.append(f(x))
    return results


@only_with_eager("a float32 constant is folded in double precision")
@same_as_eager
def test_default_dtype(wrap):
    f = wrap(lambda x: x + torch.ones(2) * 0.1)
    results = [f(torch.ones(2, dtype=torch.float64))]
    torch.set_default_dtype(torch.float64)
    try:
        results.append(f(torch.ones(2, dtype=torch.float64)))
    finally:
        torch.set_default_dtype(torch.float32)
    return results


@same_as_eager
def test_a_new_tensor_has_the_default_dtype_of_each_capture(wrap):
    f = wrap(lambda x: x + (1 if torch.ones(2).dtype == torch.float64 else 2) + torch.full((2,), 0.1).dtype.itemsize)
    results = [f(torch.ones(2))]
    torch.set_default_dtype(torch.float64)
    try:
        results += [f(torch.ones(2)), wrap(lambda x: x + torch.arange(2.0))(torch.ones(2))]
    finally:
        torch.set_default_dtype(torch.float32)
    return results


@same_as_eager
def test_deterministic_flag(wrap):
    f = wrap(lambda x: (x * 2, torch.are_deterministic_algorithms_enabled()))
    results = [f(torch.ones(2))]
    torch.use_deterministic_algorithms(True)
    try:
        results.append(f(torch.ones(2)))
    finally:
        torch.use_deterministic_algorithms(False)
    return results


# Module state


@also_compiled
@same_as_eager
def test_eval_and_train(wrap):
    model = wrap(nn.Sequential(nn.Dropout(0.5), nn.Linear(8, 2)))
    results = [model(torch.ones(2, 8))]
    results.append(model.eval()(torch.ones(2, 8)))
    results.append(model.train()(torch.ones(2, 8)))
    return results


@also_compiled
@same_as_eager
def test_a_replaced_parameter(wrap):
    model = wrap(nn.Linear(2, 2))
    results = [model(torch.ones(1, 2))]
    model.weight = nn.Parameter(torch.ones(3, 2))
    model.bias = None
    results.append(model(torch.ones(1, 2)))
    return results


@same_as_eager
def test_a_parameter_that_was_tied_later(wrap):
    model = wrap(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    first = model(torch.ones(1, 2))
    model[1].weight = model[0].weight
    second = model(torch.ones(1, 2))
    second.sum().backward()
    return first, second, grads_of(model[0].weight)


class Configured(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.steps = [1, 2]

    def forward(self, x):
        for step in self.steps:
            x = x * step
        return x * self.scale


@same_as_eager
def test_python_attributes_of_a_module(wrap):
    model = wrap(Configured())
    results = [model(torch.ones(2))]
    model.scale = 5.0
    results.append(model(torch.ones(2)))
    model.steps.append(3)
    results.append(model(torch.ones(2)))
    return results


# Aliasing and duplication


def bump(p, q):
    p.mul_(2)
    return p + q


PATTERNS = {
    "separate": lambda b: (b[0].clone(), b[1].clone()),
    "same object": lambda b: (b,) * 2,
    "same geometry": lambda b: (b[0], b[0]),
    "disjoint": lambda b: (b[0], b[1]),
    "overlapping": lambda b: (b.view(-1)[:3], b.view(-1)[1:4]),
    "other overlap": lambda b: (b.view(-1)[:3], b.view(-1)[2:5]),
    "base and view": lambda b: (b, b.view(3, 3)),
}


@pytest.mark.parametrize("grad", [True, False])
def test_every_pattern_of_aliases_in_turn(grad):
    make = (lambda: leaf(3, 3).clone()) if grad else (lambda: torch.randn(3, 3))
    makers = [lambda views=views: views(make()) for views in PATTERNS.values()]
    assert_same(bump, [*makers, *makers[::-1]])


# Python arguments


@same_as_eager
def test_keyword_order_and_spelling(wrap):
    f = wrap(lambda a, b, *, c=1.0: a - b * c)
    a, b = torch.tensor(5.0), torch.tensor(3.0)
    return f(a, b), f(a=a, b=b), f(b=b, a=a), f(a, b=b), f(c=2.0, b=b, a=a), f(a, b, c=3.0)


@pytest.mark.parametrize(
    "values",
    [
        (1, 2),
        (1.0, -1.0),
        (True, False),
        (None, 1),
        ("a", "b"),
        ((1, 2), (2, 1)),
        ([1], [1, 1]),
        ({"k": 1}, {"k": 2}),
    ],
    ids=str,
)
def test_python_argument_values(values):
    def f(x, v):
        return x * len(str(v)), v == values[0]

    assert_same(f, [lambda v=v: (leaf(2), v) for v in values], calls=2)


def test_nan_as_an_argument_is_captured_once():
    f = assert_same(lambda x, v: x * v, lambda: (torch.ones(2), float("nan")), calls=3)
    assert num_captures(f) == 1


@dataclasses.dataclass
class Config:
    scale: float


@same_as_eager
def test_a_dataclass_argument_with_other_values(wrap):
    f = wrap(lambda x, config: x * config.scale)
    config = Config(2.0)
    results = [f(torch.ones(2), config)]
    config.scale = 3.0
    return results, f(torch.ones(2), config), f(torch.ones(2), Config(4.0))


@same_as_eager
def test_default_arguments(wrap):
    def f(x, k=2, w=torch.ones(2)):  # noqa: B008 - the default is what is tested
        return x * k * w

    g = wrap(f)
    first = g(torch.ones(2))
    f.__defaults__[1].mul_(3)
    return first, g(torch.ones(2)), g(torch.ones(2), 5), g(torch.ones(2), w=torch.zeros(2))


def test_nested_containers():
    def f(tree, extra=()):
        return [tree["a"][0] * tree["b"].x, sum(extra, torch.zeros(2)), list(tree)]

    pair = collections.namedtuple("pair", "x y")
    makers = [
        lambda: ({"a": [leaf(2)], "b": pair(leaf(2), None)},),
        lambda: ({"b": pair(leaf(2), 1), "a": (leaf(2), leaf(2))}, [leaf(2)]),
        lambda: ({"a": [leaf(2)], "b": pair(leaf(2), None)}, [leaf(2), leaf(2)]),
    ]
    assert_same(f, makers, calls=2)


def test_star_arguments():
    def f(*args, **kwargs):
        return sum(args) + sum(kwargs.values()), len(args), list(kwargs)

    assert_same(f, [lambda: (leaf(2),), lambda: (leaf(2), leaf(2)), lambda: (leaf(2), 3)], calls=2)
    assert_same(f, lambda: (leaf(2),), kwargs=lambda: {"b": leaf(2), "a": leaf(2)})


# Closures


@same_as_eager
def test_a_closed_over_tensor_written_in_place_is_read_anew(wrap):
    w = torch.ones(2)
    f = wrap(lambda x: x * w)
    first = f(torch.ones(2))
    w.mul_(5)
    return first, f(torch.ones(2))


@same_as_eager
def test_a_closure_cell_bound_to_another_tensor(wrap):
    w = torch.ones(2)

    def rebind(t):
        nonlocal w
        w = t

    f = wrap(lambda x: x * w)
    results = [f(torch.ones(2))]
    for other in (torch.full((2,), 3.0), leaf(2), torch.ones(()), torch.ones(2)):
        rebind(other)
        results.append(f(torch.ones(2)))
    return results


@same_as_eager
def test_a_closed_over_number_bound_to_another(wrap):
    k = 2

    def f(x):
        return x * k

    g = wrap(f)
    first = g(torch.ones(2))
    k = 3
    return first, g(torch.ones(2))


@same_as_eager
def test_a_closed_over_tensor_that_is_an_argument_too(wrap):
    w = leaf(2).clone()

    def f(x):
        x.mul_(2)
        return x + w

    g = wrap(f)
    return g(torch.ones(2)), g(w), w


@same_as_eager
def test_a_closed_over_list_of_tensors(wrap):
    weights = [leaf(2), leaf(2)]
    f = wrap(lambda x: sum(x * w for w in weights))
    results = [f(torch.ones(2))]
    weights[0] = torch.zeros(2)
    results.append(f(torch.ones(2)))
    weights.append(leaf(2))
    return results, f(torch.ones(2))


# Kinds of callables


class Model:
    def __init__(self, w):
        self.w = w

    def method(self, x):
        return x * self.w

    def __call__(self, x):
        return x - self.w


@same_as_eager
def test_a_bound_method_reads_its_object_anew(wrap):
    model = Model(leaf(2))
    f = wrap(model.method)
    first = f(torch.ones(2))
    model.w = torch.full((2,), 7.0)
    return first, f(torch.ones(2))


@same_as_eager
def test_a_callable_object_and_a_partial(wrap):
    w = leaf(2)
    return wrap(Model(w))(torch.ones(2)), wrap(functools.partial(torch.add, alpha=3))(torch.ones(2), w)


_SCALE = 2.0


def test_a_global_that_only_a_function_inside_the_function_reads(monkeypatch):
    def function(x):
        return (lambda: x * _SCALE)()

    ours = compiled(function)
    assert torch.equal(ours(torch.ones(2)), torch.full((2,), 2.0))
    monkeypatch.setitem(globals(), "_SCALE", 3.0)
    assert torch.equal(ours(torch.ones(2)), torch.full((2,), 3.0))
