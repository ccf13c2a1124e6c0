"""Threads: what one thread captures, others do not notice; what others do, a capture does not notice."""

import builtins
import gc
import logging
import math
import random
import sys
import threading
import warnings

import pytest
import sympy  # noqa: F401  sets a filter of warnings when it is first imported
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import _CachedTorchDispatchMode, checkpoint

import foregrad as fg
from foregrad.process import temporary as held
from foregrad.record import session
from tests.compare import compiled

PLACES = (
    *((builtins, name) for name in ("print", "max", "min", "open")),
    *((math, name) for name in vars(math)),
    (logging.Logger, "handle"),
    (torch.random, "default_generator"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),
    (torch.amp.GradScaler, "_maybe_opt_step"),
    (_CachedTorchDispatchMode, "__enter__"),
    (torch.nn.modules.module, "_global_forward_hooks"),
    (torch.nn.modules.module, "_global_forward_pre_hooks"),
    (torch.optim.Optimizer, "zero_grad"),
    (torch.nn.Module, "__call__"),
    (torch.nn.Module, "_call_impl"),
)


def process():
    """What a capture may touch, as it is now."""
    found = {(owner, name): getattr(owner, name) for owner, name in PLACES}
    hooks = [len(found[torch.nn.modules.module, f"_global_forward_{kind}hooks"]) for kind in ("", "pre_")]
    functions = [vars(one).get("apply") for one in torch.autograd.Function.__mro__]
    state = (gc.isenabled(), torch.is_anomaly_enabled(), torch.is_grad_enabled(), list(warnings.filters), functions)
    return found, hooks, state


def assert_as_it_was(before):
    (found, *rest), (expected, *others) = process(), before
    assert [place for place in expected if found[place] is not expected[place]] == []
    assert rest == others
    assert not any(one.is_held for one in session.ALL)


def in_threads(*works):
    """Run these at the same time; raises what the first of them raises."""
    errors, start = [], threading.Barrier(len(works))

    def run(work):
        try:
            start.wait()
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def capture_a_function():
    p = random.random()
    x = torch.ones(5, requires_grad=True)
    compiled(lambda x: F.dropout(checkpoint(torch.sin, x * p, use_reentrant=False)).sum())(x).backward()


def capture_a_module():
    compiled(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout()))(torch.ones(4, 3)).sum().backward()


def capture_a_step_without_state():
    @fg.step(backend="eager", cache=False, python="allow")
    def step(x):
        print(end="")
        return x * max(2, 3) * math.sqrt(4)

    assert step(torch.ones(2)).tolist() == [6.0, 6.0]


def capture_a_step():
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)

    @fg.step(model, optimizer, schedule, backend="eager", cache=False, python="allow")
    def step(x):
        optimizer.zero_grad()
        loss = F.dropout(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss

    for _ in range(2):
        step(torch.ones(4, 3))


def train():
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


def draw():
    x = torch.rand(100)
    assert not torch.equal(x, torch.rand(100))
    torch.random.get_rng_state()


def log(caplog=None):
    logging.getLogger("tests.threads").debug("a line")
    print(end="")
    assert max(1, 2) == 2
    assert math.floor(2.5) == 2


def draw_with_a_generator():
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(4, generator=generator)
    assert torch.equal(first, torch.rand(4, generator=torch.Generator().manual_seed(3)))


def test_eight_threads_that_capture_train_draw_and_log():
    works = (
        capture_a_function,
        capture_a_module,
        capture_a_step_without_state,
        capture_a_step,
        train,
        draw,
        log,
        draw_with_a_generator,
    )
    for work in works:
        work()  # what is imported at the first call may stay
    before = process()

    def rounds(work):
        def run():
            for _ in range(200 if work in (train, draw, log, draw_with_a_generator) else 25):
                work()

        return run

    in_threads(*map(rounds, works))
    assert_as_it_was(before)


class Meanwhile:
    """What another thread does while a function is captured."""

    def __init__(self, work):
        self.work, self.results = work, []

    def __call__(self):
        thread = threading.Thread(target=lambda: self.results.append(self.work()))
        thread.start()
        thread.join()


@pytest.fixture
def other_thread():
    """A capture knows that it is not alone."""
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    yield
    ends.set()
    thread.join()


def test_a_draw_in_another_thread_is_not_a_seed(other_thread):
    meanwhile = Meanwhile(lambda: torch.rand(3))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)

    def f(x):
        y = F.dropout(x)
        meanwhile()
        return y * torch.rand(3)

    fg.capture(f, torch.ones(3))
    assert torch.equal(meanwhile.results[0], expected)  # and not what a recording has made of the generator
    assert not torch.equal(torch.rand(3), expected)  # nor is the draw taken back


def test_a_seed_in_another_thread_stays(other_thread):
    meanwhile = Meanwhile(lambda: torch.manual_seed(7))

    def f(x):
        meanwhile()
        return F.dropout(x)

    fg.capture(f, torch.ones(3))
    assert torch.initial_seed() == 7


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.random.manual_seed, lambda s: torch.set_rng_state(STATE)])
def test_a_seed_in_the_function_is_refused_beside_other_threads_too(other_thread, seed):
    state = torch.get_rng_state()

    def f(x):
        seed(3)
        return F.dropout(x)

    with pytest.raises(fg.CaptureError, match="seeds the random number generator"):
        fg.capture(f, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), state)


STATE = torch.Generator().manual_seed(1).get_state()


def test_a_checkpoint_draws_the_same_again_beside_other_threads(other_thread):
    x = torch.ones(50, requires_grad=True)

    def run(f):
        torch.manual_seed(0)
        out = f(x)
        return out, *torch.autograd.grad(out.sum(), x)

    def f(x):
        return checkpoint(lambda y: F.dropout(y).sin() * torch.rand(50), x, use_reentrant=False)

    for ours, theirs in zip(run(compiled(f)), run(f), strict=True):
        assert torch.equal(ours, theirs)


def test_other_threads_have_pythons_own_functions_during_a_step():
    seen = Meanwhile(lambda: (log(), logging.getLogger("tests.threads").warning("a line of another thread")))

    @fg.step(backend="eager", cache=False, python="error")
    def step(x):
        seen()
        return x * 2

    assert step(torch.ones(2)).tolist() == [2.0, 2.0]  # what another thread prints and logs is not the step's
    assert len(seen.results) == 1


def test_a_capture_that_waits_for_a_capture_in_another_thread(other_thread):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @fg.step(model, optimizer, backend="eager", cache=False, python="allow")
    def step(x):
        capture_elsewhere()
        optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        return loss

    capture_elsewhere = Meanwhile(capture_a_step)
    before = process()
    step(torch.ones(3, 2))
    assert len(capture_elsewhere.results) == 1
    assert_as_it_was(before)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_mode_outlives_captures_in_threads():
    def backward():
        for _ in range(5):
            capture_a_function()

    with torch.autograd.detect_anomaly():
        in_threads(backward, backward, backward)
        assert torch.is_anomaly_enabled()
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, ValueError])
def test_everything_is_put_back_whatever_is_raised(error):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @fg.step(model, optimizer, backend="eager", cache=False)
    def step(x):
        model(x).sum().backward()
        raise error

    before = process()
    with pytest.raises(error):
        step(torch.ones(3, 2))
    assert_as_it_was(before)
    assert all(p.grad is None for p in model.parameters())
    assert type(optimizer.param_groups[0]["lr"]) is float


@pytest.mark.slow
def test_a_function_that_is_taken_hold_of_during_a_capture_is_pythons_own():
    kept = {"__name__": "a module that is imported meanwhile"}

    @fg.step(backend="eager", cache=False, python="allow")
    def step(x):
        exec("from math import sqrt; from builtins import max, print", kept)
        return x * kept["sqrt"](4.0)

    assert step(torch.ones(1)).item() == 2
    assert (kept["sqrt"], kept["max"], kept["print"]) == (math.sqrt, max, print)


def test_a_print_that_is_replaced_during_a_capture_stays_replaced(monkeypatch):
    said = []
    monkeypatch.setattr(builtins, "print", print)  # put back after the test

    @fg.step(backend="eager", cache=False, python="allow")
    def step(x):
        builtins.print = said.append
        return x * 2

    step(torch.ones(1))
    print("a line")
    assert said == ["a line"]


def test_deterministic_mode_fills_memory_after_captures_in_threads():
    torch.use_deterministic_algorithms(True)
    try:
        in_threads(*[capture_a_function] * 4)
        assert torch.empty(5).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


def test_torch_compile_in_another_thread_works_during_a_capture():
    model = nn.Linear(3, 3)
    meanwhile = Meanwhile(lambda: torch.compile(model, backend="eager")(torch.ones(2, 3)))

    def f(x):
        meanwhile()
        return model(x).sin()

    with torch.no_grad():
        expected = model(torch.ones(2, 3))
    compiled(f)(torch.ones(2, 3))
    assert torch.equal(meanwhile.results[0].detach(), expected)


def test_a_fork_during_a_capture_in_another_thread_has_pythons_own_functions():
    import os

    captures, goes_on = threading.Event(), threading.Event()

    @fg.step(backend="eager", cache=False, python="allow")
    def step(x):
        captures.set()
        goes_on.wait()
        return x * 2

    thread = threading.Thread(target=lambda: step(torch.ones(1)))
    before = process()
    thread.start()
    captures.wait()
    child = os.fork()
    if child == 0:
        try:
            assert_as_it_was(before)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    goes_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert_as_it_was(before)


def interrupt_at(number):
    """A trace function that interrupts at one of the lines that change the process or put it back."""
    left = iter(range(number))

    def trace(frame, event, arg):
        if frame.f_code.co_filename in (session.__file__, held.__file__):
            if event == "line" and next(left, None) is None:
                raise KeyboardInterrupt
            return trace
        return None

    return trace


@pytest.mark.slow
def test_an_interrupt_at_any_line_leaves_the_process_as_it_was():
    model = nn.Linear(3, 3)

    def capture():
        fg.step(model, backend="eager", cache=False)(lambda x: model(x).sum())(torch.ones(2, 3))

    capture()
    before, number, was_interrupted = process(), 0, True
    while was_interrupted:
        around = sys.gettrace()
        sys.settrace(interrupt_at(number))
        try:
            capture()
            was_interrupted = False
        except KeyboardInterrupt:
            number += 4
        finally:
            sys.settrace(around)
        assert_as_it_was(before)
        assert not held._lock._is_owned(), "other threads would wait for ever"
    assert number > 100


def test_a_trace_of_torchs_own_in_another_thread_is_no_change():
    """While torch traces, methods of `nn.Module` are replaced for all threads, as when Inductor lowers a graph."""
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), torch.ones(2, 3)
    function = compiled(model)
    expected = function(x)
    traces, ends = threading.Event(), threading.Event()

    def traced(y):
        traces.set()
        ends.wait()
        return y + 1

    thread = threading.Thread(target=lambda: make_fx(traced)(torch.ones(2)))
    original = nn.Module.__getattr__
    thread.start()
    try:
        traces.wait()
        assert nn.Module.__getattr__ is not original
        assert torch.equal(function(x), expected)
        assert len(function.captures) == 1
        again = compiled(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
        again(x)
    finally:
        ends.set()
        thread.join()
    again(x)
    assert len(again.captures) == 1


def derivatives(f, start, used):
    """Three derivatives, each of the one before."""
    x = start.clone().requires_grad_()
    value, found = f(x)[used].sum(), []
    for _ in range(3):
        found += torch.autograd.grad(value, x, create_graph=True)
        value = found[-1].sum()
    return found


def test_backwards_of_one_call_are_recorded_one_at_a_time():
    def f(x):
        y = x.sin() * x.exp()
        return y.sum(), y.cos(), y * x

    def work(run, used):
        start = torch.arange(5.0)
        for ours, theirs in zip(derivatives(run, start, used), derivatives(f, start, used), strict=True):
            torch.testing.assert_close(ours, theirs)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(5):
            run = compiled(f)
            in_threads(*(lambda run=run, used=used: work(run, used) for used in range(3)))
    finally:
        sys.setswitchinterval(interval)


def test_another_thread_that_compiles_for_torch_changes_nothing():
    started, done = threading.Event(), threading.Event()

    def compile_for_a_while():
        def backend(graph, inputs):
            started.set()
            assert done.wait(60)
            return graph.forward

        torch.compile(lambda x: x.sin() * 3, backend=backend)(torch.ones(2))

    thread = threading.Thread(target=compile_for_a_while)
    thread.start()
    assert started.wait(60)
    try:
        assert torch.compiler.is_compiling()  # the flag is one for all threads
        compiled = fg.compile(lambda x: x.sin(), backend="eager")
        compiled(torch.ones(2))
        assert len(compiled.captures) == 1
        with pytest.raises(fg.CaptureError, match="needed in Python"):
            fg.compile(lambda x: x if x.sum() > 0 else -x, backend="eager", questions="error")(torch.ones(2))
    finally:
        done.set()
        thread.join()
