"""Python attributes of tensors, and what a stored `attrgetter` reads, are read as in eager after they have changed."""

import operator
import types

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import compiled, same_as_eager

X = torch.ones(3)


@same_as_eager
def test_an_attribute_of_an_argument(wrap):
    f, x = wrap(lambda x: x * getattr(x, "scale", 1.0)), X.clone()
    results = [f(x)]
    for scale in (3.0, 4.0):
        x.scale = scale
        results.append(f(x))
    del x.scale
    return [*results, f(x)]


@same_as_eager
def test_an_attribute_of_a_tensor_in_a_closure(wrap):
    weight = torch.full((3,), 2.0)
    weight.scale = 2.0
    f = wrap(lambda x: x * weight * weight.scale)
    results = [f(X)]
    weight.scale = 5.0
    return [*results, f(X)]


@same_as_eager
def test_an_attribute_of_a_parameter(wrap):
    class Scaled(nn.Linear):
        def forward(self, x):
            return super().forward(x) * self.weight.scale

    torch.manual_seed(0)
    model = Scaled(3, 3)
    model.weight.scale = 2.0
    f, results = wrap(model), []
    for scale in (2.0, 7.0):
        model.weight.scale = scale
        results.append(f(X).detach())
    model.weight = nn.Parameter(torch.ones(3, 3))
    model.weight.scale = 9.0
    return [*results, f(X).detach()]


def test_an_attribute_that_no_code_reads_costs_one_capture_at_most():
    f, x = compiled(lambda x: x * 2), X.clone()
    for name in ("a", "b", "c"):
        setattr(x, name, 1)
        f(x)
    assert len(f.captures) == 1


def test_an_attribute_set_on_an_input_that_has_some_is_refused():
    def f(x):
        x.scale = 3.0
        return x * 2

    x = X.clone()
    x.scale = 2.0
    with pytest.raises(fg.CaptureError, match="sets the attribute 'scale'"):
        compiled(f)(x)
    assert x.scale == 2.0


GETTERS = {"scale": lambda: types.SimpleNamespace(scale=2.0), "inner.scale": lambda: types.SimpleNamespace(inner=None)}


@pytest.mark.parametrize("path", GETTERS)
def test_what_a_stored_attrgetter_reads_is_guarded(path):
    config, get = GETTERS[path](), operator.attrgetter(path)
    holder = config
    if path != "scale":
        holder = config.inner = types.SimpleNamespace(scale=2.0)
    f = compiled(lambda x: x * get(config))
    assert f(X)[0] == 2
    holder.scale = 5.0
    assert f(X)[0] == 5


def _marks(x):
    y = x * 2
    y.mark = 1
    return y


def _marks_in_a_dict(x, kept=None):
    kept["y"] = _marks(x)


@pytest.mark.parametrize(("function", "more"), [(_marks, {}), (_marks_in_a_dict, {"kept": {}})])
def test_an_attribute_that_the_function_sets_on_a_result_is_refused(function, more):
    with pytest.raises(fg.CaptureError, match="sets the attribute 'mark' on a tensor"):
        compiled(function)(X, **more)


def test_an_attribute_of_a_tensor_that_stays_inside():
    assert torch.equal(compiled(lambda x: _marks(x) * _marks(x).mark)(X), X * 2)
