"""Calls that were found without tracing: they read the tensors of their own process, and record only what they ran."""

import enum
import types

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foregrad as fg
from foregrad.cache.serialize.cached_calls import FOUND


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.ones(3)), 2.0

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return (x * self.weight * self.scale).sin(), (x * self.weight).cos()


def found(target, cache: fg.Cache, *args):
    """The target, after a call that another one has left to it."""
    fg.compile(target, backend="eager", cache=cache)(*args)
    return fg.compile(target, backend="eager", cache=cache)


def origins(function) -> list[str]:
    return [made.origin.how for made in function.captures]


@pytest.fixture
def cache(tmp_path) -> fg.Cache:
    return fg.Cache(tmp_path / "cache")


def test_a_backward_from_some_results_is_recorded_with_the_modes_of_the_call(cache: fg.Cache):
    model, x = Pair(), torch.arange(3.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = found(model, cache, x)
        results, expected = compiled(x), model(x)
    assert origins(compiled) == [FOUND]
    got, wanted = (torch.autograd.grad(r[1].sum(), model.weight)[0] for r in (results, expected))
    assert torch.equal(got, wanted)


def test_a_recording_after_a_change_is_refused(cache: fg.Cache):
    model, x = Pair(), torch.arange(3.0)
    compiled = found(model, cache, x)
    result, _ = compiled(x)
    model.scale = 3.0
    with pytest.raises(fg.BackwardError, match="has changed since the call"):
        torch.autograd.grad(result.sum(), model.weight)
    assert torch.equal(compiled(x)[0], model(x)[0])
    assert "scale=2.0, is training=True, scale=3.0" in compiled.captures[1].reason


class Labelled(nn.Module):
    """As models of transformers are called: `model(input_ids=ids, labels=ids)`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        logits = inputs * self.weight
        return (logits - labels * 2).square().sum(), logits.sin()


def test_a_call_with_one_tensor_as_two_arguments_is_found(cache: fg.Cache):
    model, x = Labelled(), torch.arange(3.0)
    compiled = found(model, cache, x, x)
    results, expected = compiled(x, x), model(x, x)
    assert origins(compiled) == [FOUND]
    assert torch.equal(results[0], expected[0])
    got, wanted = (torch.autograd.grad(r[1].sum(), model.weight)[0] for r in (results, expected))  # recorded again
    assert torch.equal(got, wanted)


def test_a_call_with_two_tensors_is_not_that_of_one_tensor_given_twice(cache: fg.Cache):
    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return x * y

    for first, second in ((0, 0), (0, 1), (0, 0), (0, 1)):
        tensors = [torch.arange(3.0), torch.arange(3.0)]
        expected = add(*([tensors[0].clone()] * 2 if second == 0 else [t.clone() for t in tensors]))
        compiled = fg.compile(add, backend="eager", cache=cache)
        assert torch.equal(compiled(tensors[first], tensors[second]), expected)


class Holder:
    def __init__(self) -> None:
        self.tensor, self.factor = torch.ones(3), 2.0

    def method(self, x: Tensor) -> Tensor:
        return x * self.tensor * self.factor


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.holder, self.tensor = Holder(), torch.ones(3)
        self.inner = nn.Module()
        self.inner.tensor = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.holder.tensor * self.tensor * self.inner.tensor


TENSOR = torch.ones(3)
HOLDER, BARE = Holder(), Plain()


def of_a_global(x: Tensor) -> Tensor:
    return x * TENSOR


def of_an_object(x: Tensor) -> Tensor:
    return x * HOLDER.tensor


def of_a_module_that_is_no_state(x: Tensor) -> Tensor:
    return BARE(x)


def of_a_default(x: Tensor, y: Tensor = TENSOR) -> Tensor:
    return x * y


TARGETS = [of_a_global, of_an_object, of_a_module_that_is_no_state, of_a_default, HOLDER.method, BARE]


@pytest.mark.parametrize("target", TARGETS, ids=lambda one: getattr(one, "__name__", type(one).__name__))
def test_tensors_that_are_no_arguments_are_read_where_they_are(target, cache: fg.Cache):
    x = torch.arange(3.0)
    compiled = found(target, cache, x)
    for tensor in (TENSOR, HOLDER.tensor, BARE.tensor, BARE.holder.tensor, BARE.inner.tensor):
        tensor.add_(1)
        assert torch.equal(compiled(x), target(x))
    HOLDER.factor += 1.0
    assert torch.equal(compiled(x), target(x))


class Mode(enum.IntEnum):
    DOUBLE = 2


NUMBER, MODE = np.float64(2.0), Mode.DOUBLE


def test_numbers_of_other_classes_than_pythons(cache: fg.Cache):
    def function(x: Tensor) -> Tensor:
        return x * NUMBER if MODE is Mode.DOUBLE else x

    x = torch.arange(3.0)
    assert torch.equal(found(function, cache, x)(x), x * 2)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_an_argument_without_strides_is_taken_as_without_a_cache(layout: torch.layout, cache: fg.Cache):
    for _ in range(2):
        f = fg.compile(torch.mm, backend="eager", cache=cache)
        assert torch.equal(f(torch.eye(2).to_sparse(layout=layout), torch.ones(2, 2)), torch.ones(2, 2))


def test_an_argument_of_another_layout_is_refused_as_without_a_cache(cache: fg.Cache):
    with pytest.raises(fg.CaptureError, match="has the layout"):
        fg.compile(torch.neg, backend="eager", cache=cache)(torch.eye(2).to_mkldnn())


def counting():
    count = 0

    def function(x: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return x * count

    return function


def test_a_call_that_is_refused_is_not_left_to_later_processes(cache: fg.Cache):
    for _ in range(2):
        with pytest.raises(fg.CaptureError, match="that it also reads"):
            fg.compile(counting(), backend="eager", cache=cache)(torch.ones(2))


def test_a_scheduler_knows_of_the_steps_of_a_call_that_was_found(cache: fg.Cache):
    for _ in range(2):
        weight = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

        @fg.step(weight, optimizer, backend="eager", cache=cache)
        def train(weight=weight, optimizer=optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = weight.square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        train()
        schedule.step()  # a warning of its is an error here
    assert origins(train) == [FOUND]


def test_a_config_that_changes_is_seen_by_a_call_that_was_found(cache: fg.Cache):
    for _ in range(2):
        CONFIG.scale = 2.0
        f = fg.compile(scaled_by_the_config, backend="eager", cache=cache)
        assert f(torch.ones(2)).tolist() == [2.0, 2.0]
    CONFIG.scale = 3.0
    assert f(torch.ones(2)).tolist() == [3.0, 3.0]
    assert origins(f)[0] == FOUND
    CONFIG.scale = 2.0


CONFIG = types.SimpleNamespace(scale=2.0)


def scaled_by_the_config(x: Tensor) -> Tensor:
    return x * CONFIG.scale


def prints(x: Tensor) -> Tensor:
    print("once")
    return x * 2


def test_what_python_does_at_capture_only_is_named_again(cache: fg.Cache, capsys):
    with pytest.warns(UserWarning, match=r"print at .*test_found_calls"):
        compiled = found(prints, cache, torch.ones(3))
    capsys.readouterr()
    with pytest.warns(UserWarning, match=r"print at .*test_found_calls"):
        compiled(torch.ones(3))
    assert origins(compiled) == [FOUND]
    assert capsys.readouterr().out == ""
    assert "at capture only: print at" in str(fg.explain(compiled))


LSTM = nn.LSTM(4, 5, batch_first=True)


def last_states(x: Tensor) -> Tensor:
    return LSTM(x)[0]


def test_that_a_size_cannot_vary_is_said_again(cache: fg.Cache):
    x, said = torch.randn(2, 3, 4), "x cannot vary as dynamic= says"
    for how in ("captured", FOUND):
        compiled = fg.compile(last_states, backend="eager", cache=cache, dynamic={"x": (1,)})
        with pytest.warns(UserWarning, match=said):
            compiled(x)
        assert origins(compiled) == [how]
