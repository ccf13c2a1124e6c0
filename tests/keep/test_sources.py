"""Keys from the sources within one process: everything is read anew each time, and nothing is kept."""

import functools
import gc
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import foregrad as fg
from foregrad.backends.eager import compile_graph
from foregrad.cache.key.environment import environment_of
from foregrad.cache.key.ingredients import differences
from foregrad.cache.key.sources import sources_of
from foregrad.runtime.options import Options

X = torch.ones(3)
SCALE = 2
DEVICES = [torch.device("cuda:0"), torch.device("cuda:1")]


def plain(x):
    return x


def key(target, *args, state=(), **kwargs):
    found = sources_of(target, args or (X,), kwargs, state=state)
    assert set(found.unsure) <= set(sources_of(plain, (X,), {}).unsure)  # what other tests have done to torch
    return found.key


def changed(old, new):
    return [str(one).splitlines()[0] for one in differences(old, new)]


def scaled(x):
    return F.relu(x * SCALE)


def moved(x):
    return [x.to(device) for device in DEVICES]


def test_a_global_is_read_anew(monkeypatch):
    before = key(scaled)
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert changed(before, key(scaled)) == [f"global {__name__}.SCALE: 2 -> 3"]


def test_a_cell_is_read_anew():
    number = 2

    def f(x):
        return x * number

    before = key(f)
    number = 3
    assert [one.endswith("number: 2 -> 3") for one in changed(before, key(f))] == [True]


def test_other_code_in_the_same_function():
    def f(x):
        return x * 2

    before = key(f)
    f.__code__ = (lambda x: x * 3).__code__
    assert key(f).digest != before.digest


def test_a_function_of_torch_that_is_replaced_later(monkeypatch):
    before = key(scaled)
    monkeypatch.setattr(F, "relu", lambda x: x)
    patched = key(scaled)
    assert patched.digest != before.digest
    monkeypatch.undo()
    assert key(scaled).digest == before.digest


def test_code_that_is_put_into_a_function_of_torch_later(monkeypatch):
    before = key(scaled)
    monkeypatch.setattr(F.relu, "__code__", (lambda x, inplace=False: x).__code__)
    assert key(scaled).digest != before.digest


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.eval(),
        lambda model: setattr(model[0], "bias", None),
        lambda model: setattr(model, "flag", 1),
        lambda model: model[0].register_forward_hook(lambda *given: None),
        lambda model: model[0].weight.requires_grad_(False),
        lambda model: setattr(model[0].weight, "grad", torch.ones(3, 3)),
        lambda model: model.append(nn.ReLU()),
        lambda model: model.double(),
        lambda model: model[0].register_buffer("more", torch.ones(1)),
        lambda model: setattr(model[0], "forward", lambda x: x),
        lambda model: setattr(model[1], "weight", model[0].weight),
    ],
)
def test_a_module_that_changes(change):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    before = key(model)
    change(model)
    assert key(model).digest != before.digest


def test_numbers_of_declared_optimizers_do_not_matter_but_their_kind_does():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.step()

    before = key(step, state=(model, optimizer))
    optimizer.param_groups[0]["lr"] = 0.2
    assert changed(before, key(step, state=(model, optimizer))) == []
    assert key(step).digest != before.digest
    optimizer.param_groups[0]["lr"] = torch.tensor(0.2)
    assert changed(before, key(step, state=(model, optimizer))) == ["state 1 differs:"]


def test_which_steps_of_an_optimizer_are_equal_matters_but_not_what_they_are():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.step()

    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    before = key(step, state=(model, optimizer))
    optimizer.step()
    assert changed(before, key(step, state=(model, optimizer))) == []
    optimizer.state[model.bias]["step"] += 1
    assert changed(before, key(step, state=(model, optimizer))) == ["equal numbers:  -> step f32: 0 1"]


def test_state_that_an_optimizer_has_made():
    model = nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())

    def step(x):
        optimizer.step()

    before = key(step, state=(model, optimizer))
    model(X).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    assert changed(before, key(step, state=(model, optimizer))) == ["state 1 differs:"]


def test_arguments_by_position_and_by_name():
    def f(x, y=None):
        return x if y is None else x * y

    assert key(f, X, X.clone()).digest != key(f, X, y=X.clone()).digest


def test_devices_have_no_index(monkeypatch):
    before = key(moved)
    monkeypatch.setitem(globals(), "DEVICES", [torch.device("cuda:3"), torch.device("cuda:2")])
    assert key(moved).digest == before.digest
    monkeypatch.setitem(globals(), "DEVICES", [torch.device("cuda:3"), torch.device("cuda:3")])
    assert key(moved).digest != before.digest


def test_a_compiled_function_is_known_by_what_it_compiles():
    compiled = fg.compile(scaled, backend="eager")

    def f(x):
        return compiled(x)

    before = key(f)
    compiled(X)  # captures
    assert key(f).digest == before.digest


def skip_after_torch_compile():
    """What torch.compile leaves in a process leads to everything: keys of compiled modules are in doubt then."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is not None and utils.compilation_time_metrics:
        pytest.skip("torch.compile was used in this process")


def test_a_compiled_module_is_known_by_what_it_compiles():
    skip_after_torch_compile()
    model = fg.compile(nn.Linear(3, 3), backend="eager")

    def f(x):
        return model(x)

    before = key(f)
    model(X)
    assert changed(before, key(f)) == []


def test_surroundings_are_part_of_the_key():
    surroundings = environment_of(Options(compile_graph))
    found = sources_of(scaled, (X,), {}, environment=surroundings)
    assert set(found.unsure) <= set(sources_of(plain, (X,), {}).unsure)
    assert {"torch", "python", "foregrad", "backend", "target"} <= set(found.key.by_name)


def test_an_object_that_cannot_be_looked_at_is_a_doubt():
    class Hostile:
        __slots__ = ("value",)

        def __hash__(self):
            raise RuntimeError("no")

    class Dict(dict):
        def __init_subclass__(cls):
            raise RuntimeError("no")

    hostile = functools.partial(scaled, Hostile(), {1: Dict()})
    assert sources_of(hostile, (X,), {}).key.digest


def test_a_key_keeps_nothing_alive():
    skip_after_torch_compile()

    def gone():
        model = nn.Linear(3, 3)
        compiled = fg.compile(model, backend="eager")
        key(lambda x: compiled(x))
        return weakref.ref(model)

    one = gone()
    gc.collect()
    assert one() is None


def test_what_torch_registers_when_vmap_is_first_used_is_no_doubt():
    torch.func.vmap(torch.sin)(torch.ones(3))
    assert sources_of(scaled, (torch.ones(2),), {}).unsure == ()
