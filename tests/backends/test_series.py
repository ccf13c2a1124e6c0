"""Calls of C++ functions one after another, with what only they see in one piece of memory."""

import ctypes
import struct
from itertools import pairwise

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.backends.cpp_wrapper import CallPlan, Result, ScratchMemory
from foregrad.backends.kernels.call_sequence import Series
from foregrad.backends.kernels.write_call_sequence import Function, stretches
from foregrad.backends.stitch import _taken, stitch
from foregrad.core.generated import generated_of
from foregrad.regions.regions import RegionCall, Regions

MADE = "empty_strided_cpu((4,), (1,), torch.float32)"
WHOLE = Result(1, (4,), (1,), 0, 4, True)


def floats(address):
    return (ctypes.c_float * 4).from_address(address)


class Machine:
    """Python in place of C++: functions by their addresses, which are passed where their data is."""

    def __init__(self):
        self.functions = {}

    def function(self, body, plan):
        self.functions[address := 1000 + len(self.functions)] = body
        return Function(lambda: address, self.run, plan)

    def run(self, table, *tensors):
        words = list(struct.unpack(f"{len(table) // 8}q", table))
        for _ in range(words.pop(0)):
            body, num = self.functions[words.pop(0)], words.pop(0)
            passed = [tensors[words.pop(0)].data_ptr() + words.pop(0) for _ in range(num)]
            body(*map(floats, passed))
        assert not words


def add_one(given, scratch, made):
    scratch[:] = [x + 1 for x in given]
    made[:] = scratch[:]


def with_scratch(machine, results=(WHOLE,)):
    plan = CallPlan(made=(ScratchMemory(MADE, 16),), num_bytes=16, passed=(0, 2, 1), results=results)
    return machine.function(add_one, plan)


def regions_of(calls, results):
    return Regions((), calls, ("x",), results, {})


def chain(num, results):
    """x -> v0 -> v1 -> ..."""
    names = ["x", *(f"v{place}" for place in range(num))]
    calls = tuple(RegionCall(0, (a,), (b,), ()) for a, b in pairwise(names))
    return regions_of(calls, results)


def test_what_only_the_series_sees_shares_its_memory():
    made = stitch(chain(50, ("v49",)), [with_scratch(Machine())], "run")
    assert torch.equal(made(torch.zeros(4))[0], torch.full((4,), 50.0))
    text = generated_of(made).text
    assert text.count("empty_strided_cpu") == 2
    assert "memory = empty_strided_cpu((192,)," in text  # the value before, the value after, and what is between
    assert "region" not in text


def test_what_others_need_is_a_tensor_of_its_own():
    made = stitch(chain(3, ("v2", "v0", "v0")), [with_scratch(Machine())], "run")
    third, first, again = made(torch.zeros(4))
    assert third.tolist() == [3.0] * 4
    assert first.tolist() == [1.0] * 4
    assert again is first
    assert third.untyped_storage().nbytes() == first.untyped_storage().nbytes() == 16
    assert third.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()


def test_results_may_be_parts_of_memory_arguments_or_nothing():
    machine = Machine()
    part = Result(1, (2,), (1,), 2, 4, False)
    given = Result(0, (4,), (1,), 0, 4, True)
    first = with_scratch(machine, (part, None, given))
    seen = Result(0, (1,), (1,), 1, 4, False)
    second = machine.function(lambda given: None, CallPlan((), 0, (0,), (seen,)))
    calls = (RegionCall(0, ("x",), ("part", "nothing", "same"), ()), RegionCall(1, ("part",), ("last",), ()))
    run = stitch(regions_of(calls, ("part", "nothing", "same", "last")), [first, second], "run")
    x = torch.arange(4.0)
    part, nothing, same, last = run(x)
    assert part.tolist() == [3.0, 4.0]
    assert nothing is None
    assert same is x
    assert last.tolist() == [4.0]
    assert last.storage_offset() == 3
    assert last.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()


def test_python_between_functions_ends_a_series():
    machine = Machine()
    functions = [with_scratch(machine), lambda values: (values[0] * 2,)]
    calls = [RegionCall(region, (), (), ()) for region in (0, 0, 1, 1, 0)]
    assert [len(stretch) for stretch in stretches(calls, functions)] == [2, 1, 1, 1]
    names = ["x", "a", "b", "c", "d", "e"]
    calls = tuple(
        RegionCall(region, (a,), (b,), ()) for region, a, b in zip((0, 0, 1, 1, 0), names, names[1:], strict=False)
    )
    run = stitch(regions_of(calls, ("e", "b")), functions, "run")
    assert [result.tolist() for result in run(torch.zeros(4))] == [[9.0] * 4, [2.0] * 4]


def test_a_series_makes_no_more_than_its_share_at_once():
    plan = CallPlan((ScratchMemory(MADE, 30 << 20),), 0, (0, 1), (WHOLE,))
    calls = [RegionCall(0, (), (), ())] * 5
    assert [len(stretch) for stretch in stretches(calls, [Machine().function(None, plan)])] == [2, 2, 1]


def test_a_table_is_kept_with_places_for_addresses():
    machine = Machine()
    functions = [with_scratch(machine), with_scratch(machine)]
    addresses = tuple(f.address for f in functions)
    series = Series(machine.run, addresses, (2, 1, 3, 0, 0, 1, 0, 2, 0, 0, 3, 2, 0, 1, 0, 3, 0))
    x, scratch, middle, last = torch.zeros(4), torch.zeros(4), torch.zeros(4), torch.zeros(4)
    series(x, scratch, middle, last)
    assert (middle.tolist(), last.tolist()) == ([1.0] * 4, [2.0] * 4)


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(12))

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x.square().mean()


@pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
def test_a_deep_model_is_one_call_of_cpp_and_trains_as_eager_does(monkeypatch):
    run = []
    call = Series.__call__
    monkeypatch.setattr(Series, "__call__", lambda self, *given: run.append(self.table[0]) or call(self, *given))
    losses = []
    for is_ours in (True, False):
        torch.manual_seed(0)
        model, x = Deep(), torch.randn(4, 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(model=model, optimizer=optimizer, x=x):
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            return loss.detach()

        if is_ours:
            step = fg.step(model, optimizer, backend="inductor", cache=False, progress=False)(step)
        losses.append([float(step()) for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert len(run) == 3  # of the four steps: the first makes the optimizer's state
    assert min(run) > 12


def test_what_a_later_call_gives_again_is_taken_from_before_by_an_earlier_one():
    """A view that two regions need may be made again by the second, under the same name: the first still takes it."""
    calls = [RegionCall(0, ("v",), ("a",), ("a",)), RegionCall(1, ("a",), ("v", "b"), ("v", "b"))]
    assert list(_taken(calls)) == ["v"]
