"""What is dropped is freed: a compiled function, module or step with all that it holds of the user's, at once."""

import gc
import subprocess
import sys
import warnings
import weakref

import pytest
import torch
from torch import Tensor, nn

import foregrad as fg
from foregrad.api.captured import Capture
from foregrad.cache.serialize.cached_calls import FOUND


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.0))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return y.sin(), y.cos()


X = torch.ones(2, 3)


@pytest.fixture
def no_collection():
    """What is freed here is freed by its reference count."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def cache(tmp_path) -> fg.Cache:
    return fg.Cache(tmp_path / "cache")


def watched(model: nn.Module) -> list[weakref.ref]:
    return [weakref.ref(one) for one in (*model.modules(), *model.parameters())]


def num_alive(references: list[weakref.ref]) -> int:
    return sum(one() is not None for one in references)


def as_module(model, cache):
    call = fg.compile(model, backend="eager", cache=cache)
    return call, lambda: sum(part.sum() for part in call(X)).backward()


def as_function(model, cache):
    call = fg.compile(lambda x: sum(part.sum() for part in model(x)), backend="eager", cache=cache)
    return call, lambda: call(X).backward()


def as_dynamic(model, cache):
    call = fg.compile(model, backend="eager", cache=cache, dynamic={"x": (0,)})
    return call, lambda: call(X)[0].sum().backward()


class Storing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, None

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.inner(x)[0].detach()
        return self.last * self.inner(x)[1]


def as_storing(model, cache):
    call = fg.compile(Storing(model), backend="eager", cache=cache)
    return call, lambda: call(X).sum().backward()


def as_step(model, cache):
    optimizer = torch.optim.AdamW(model.parameters())

    @fg.step(model, optimizer, backend="eager", cache=cache)
    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = sum(part.sum() for part in model(x))
        loss.backward()
        optimizer.step()
        return loss

    return train, lambda: train(X)


@pytest.mark.parametrize("kept", [False, True], ids=["captured", "found"])
@pytest.mark.parametrize("make", [as_module, as_function, as_dynamic, as_step, as_storing])
def test_a_model_is_freed_with_what_was_compiled_of_it(make, kept, cache, no_collection):
    for _ in range(1 + kept):
        model = Two()
        call, run = make(model, cache if kept else False)
        run(), run()
        references = watched(model)
        del model, call, run
    assert num_alive(references) == 0


def test_a_backward_runs_after_all_was_dropped(no_collection):
    model = Two()
    references = watched(model)
    expected = torch.autograd.grad(model(X)[1].sum(), list(model.parameters()))
    result = fg.compile(model, backend="eager", cache=False)(X)[1].sum()
    parameters = list(model.parameters())
    del model
    result.backward()  # from one result: recorded now
    assert all(torch.equal(p.grad, grad) for p, grad in zip(parameters, expected, strict=True))
    del result, parameters
    gc.collect()  # a backward was still to run when the compiled module was dropped
    assert num_alive(references) == 0


def test_a_call_that_was_found_is_recorded_after_the_compiled_module_was_dropped(cache):
    model = Two()
    fg.compile(model, backend="eager", cache=cache)(X)
    call = fg.compile(model, backend="eager", cache=cache)
    result = call(X)[1].sum()
    assert call.origin.how == FOUND
    del call
    found = torch.autograd.grad(result, model.inner[0].weight)[0]
    assert torch.equal(found, torch.autograd.grad(model(X)[1].sum(), model.inner[0].weight)[0])


def test_a_call_that_was_found_is_differentiated_after_all_was_dropped(cache):
    """`sum` gives a tangent of another layout than the one that was captured: what the first ask for is kept."""
    gradients = []
    for _ in range(2):
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        result, weight = fg.compile(model, backend="eager", cache=cache)(X).sum(), model.weight
        del model
        (gradient,) = torch.autograd.grad(result, weight, create_graph=True)
        gradients.append(gradient)
    assert torch.equal(*gradients)


class Bound(nn.Module):
    """Its forward is another object each time that it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    forward = property(lambda self: lambda x: (self.inner(x).sin(), self.inner(x).cos()))


def test_a_forward_that_nobody_else_holds_is_recorded_after_the_compiled_module_was_dropped(cache):
    model = Bound()
    call = fg.compile(lambda x: model(x), backend="eager", cache=cache)
    call(X)
    result = fg.compile(lambda x: model(x), backend="eager", cache=cache)(X)[1].sum()
    (gradient,) = torch.autograd.grad(result, model.inner.weight, create_graph=True)
    assert torch.equal(gradient, torch.autograd.grad(model(X)[1].sum(), model.inner.weight)[0])


def test_callbacks_of_the_garbage_collector_are_called_in_pairs(cache):
    call = fg.compile(torch.sin, backend="eager", cache=False)
    call(X)
    del call
    phases = []
    gc.callbacks.append(callback := lambda phase, info: phases.append(phase))
    gc.collect()
    gc.callbacks.remove(callback)
    assert phases == ["start", "stop"]


def test_captures_that_hold_for_one_call_are_not_held_for_ever():
    class Counter:
        count = 0

    def count(x: Tensor) -> Tensor:
        Counter.count += 1
        return x * Counter.count

    call = fg.compile(count, backend="eager", cache=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it was captured often
        for number in range(1, 40):
            assert torch.equal(call(X), X * number)
    gc.collect()
    held = [one for one in gc.get_objects() if type(one) is Capture and one.once]
    assert 0 < len(held) < 30


def test_modules_of_one_class_share_the_class_of_compiled_ones():
    first, second = (fg.compile(Two(), backend="eager", cache=False) for _ in range(2))
    assert type(first) is type(second)
    first(X)
    assert (len(first.captures), len(second.captures)) == (1, 0)


def test_an_instance_that_was_not_made_by_compile_is_a_plain_module():
    """As `nn.DataParallel` makes replicas, and methods that make another of their own kind."""
    compiled = fg.compile(nn.Linear(3, 3), backend="eager", cache=False)
    replica = compiled.__new__(type(compiled))
    replica.__dict__ = compiled.__dict__.copy()
    assert torch.equal(replica(X), compiled(X))
    assert type(compiled)(3, 2)(X).shape == (2, 2)


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc, and returned by glibc")
def test_memory_of_dropped_modules_goes_back_to_the_system():
    script = """
import gc, torch, foregrad as fg
from pathlib import Path
from torch import nn

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

def used():
    model = fg.compile(nn.Linear(1000, 1000), backend="eager", cache=False)
    model(torch.ones(4, 1000)).sum().backward()
    return model

used()
gc.collect()
before = resident()
models = [used() for _ in range(20)]  # 4 MB of weights and 4 of gradients each
assert resident() - before > 140, "they are there"
del models
gc.collect()
print(resident() - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 40
