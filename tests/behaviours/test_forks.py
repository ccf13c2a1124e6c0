"""Forks: a child can call what is compiled, compile more and train, whatever another thread captures at the fork.

A child that hangs is ended by its own alarm, and is a failure."""

import os
import secrets
import signal
import threading
import time
import traceback
from contextlib import contextmanager

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import foregrad as fg
from foregrad.process import forks
from tests.behaviours.test_threads import process

SECONDS = 60


def start(work, num_threads=1):
    """Do something in a child, with one thread of torch's, as workers of a DataLoader have; `finish` waits for it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            torch.set_num_threads(num_threads)
            work()
            said = "done"
        except BaseException:
            said = traceback.format_exc()
        os.write(writer, said.encode()[:60_000])
        os._exit(0)
    os.close(writer)
    return child, reader


def finish(started):
    child, reader = started
    with open(reader, "rb") as file:
        said = file.read().decode()
    _, status = os.waitpid(child, 0)
    return f"the child did not end within {SECONDS} s" if os.WIFSIGNALED(status) else said


def in_child(work):
    assert finish(start(work)) == "done"


FACTOR = 1 + secrets.randbelow(10**6) / 10**6  # kernels are built anew, and not found on disk


def wave(x):
    return (x.sin() * FACTOR + x.cos() * x).sum()


def check(function, size):
    """A compiled `wave`, against eager, with its gradient."""
    x, y = torch.linspace(0, 1, size, requires_grad=True), torch.linspace(0, 1, size, requires_grad=True)
    ours, eager = function(x), wave(y)
    ours.backward()
    eager.backward()
    torch.testing.assert_close([ours, x.grad], [eager, y.grad])  # fused sums are rounded otherwise


@contextmanager
def meanwhile(work):
    """Another thread does something again and again; it must still be at it at the end."""
    errors, is_over, has_begun = [], threading.Event(), threading.Event()

    def run():
        try:
            while not is_over.is_set():
                work()
                has_begun.set()
        except BaseException as error:
            errors.append(error)
            has_begun.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert has_begun.wait(SECONDS)
    try:
        yield
    finally:
        is_over.set()
        thread.join(SECONDS)
    assert not thread.is_alive()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_child_calls_what_is_compiled_and_meets_new_shapes(backend):
    function = fg.compile(wave, backend=backend, cache=False)
    for size in (5, 17):
        check(function, size)

    def work():
        for size in (5, 6, 17, 33):
            check(function, size)

    in_child(work)
    in_child(work)
    work()


@pytest.mark.parametrize("num_threads", [1, 2])
def test_kernels_for_several_threads_run_in_a_child(num_threads):
    """Sizes at which eager uses one thread, and at which it uses more and would hang by itself."""
    before, function = torch.get_num_threads(), fg.compile(wave, backend="inductor", cache=False)
    torch.set_num_threads(2)
    try:
        for size in (20_000, 1 << 20):
            check(function, size)
            assert finish(start(lambda size=size: check(function, size), num_threads)) == "done"
            check(function, size)
    finally:
        torch.set_num_threads(before)


scale = fg.compile(lambda x: (x * 3).cos(), backend="eager", cache=False)
fused = fg.compile(lambda x: (x * FACTOR).cos() + x.sin(), backend="inductor", cache=False)


def collate(rows):
    return scale(torch.stack(rows)), fused(torch.stack(rows))


def test_workers_of_a_data_loader_compile():
    rows = [torch.full((7,), float(i)) for i in range(22)]
    for function in (scale, fused):
        function(torch.ones(3, 7))
    loader = DataLoader(rows, batch_size=4, num_workers=2, collate_fn=collate, timeout=SECONDS)
    scaled, both = zip(*loader, strict=True)
    x = torch.stack(rows)
    assert torch.equal(torch.cat(scaled), (x * 3).cos())
    torch.testing.assert_close(torch.cat(both), (x * FACTOR).cos() + x.sin())


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
    assert all(p.isfinite().all() for p in model.parameters())


@pytest.mark.filterwarnings("ignore:.*was captured 8 times")
@pytest.mark.slow
def test_twenty_forks_while_another_thread_captures():
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.0), nn.Linear(3, 1))
    shared = fg.compile(model, backend="eager", cache=False, dynamic=False)
    sizes = iter(range(5, 10_000))
    function = fg.compile(wave, backend="eager", cache=False)
    check(function, 5)
    drops = nn.Dropout(0.5)

    def capture():
        fg.capture(drops, torch.ones(3))
        shared(torch.ones(next(sizes), 3)).sum().backward()

    before, drawn = process(), torch.get_rng_state()

    def work():
        assert str(process()) == str(before)  # objects by address
        assert torch.equal(torch.get_rng_state(), drawn)
        check(function, 5)
        check(function, 6)
        train(model)
        train(shared)
        capture()

    with meanwhile(capture):
        children = [start(work) for _ in range(20)]
        assert [finish(child) for child in children] == ["done"] * 20


@pytest.mark.slow
def test_forks_while_another_thread_compiles():
    function = fg.compile(wave, backend="inductor", cache=False)
    numbers = iter(range(100))

    def build():
        number = FACTOR + next(numbers)
        fg.compile(lambda x: (x * number).sin().exp(), backend="inductor", cache=False)(torch.ones(5))

    def work():
        check(function, 5)
        build()

    check(function, 5)
    with meanwhile(build):
        children = []
        for _ in range(5):
            children.append(start(work))
            time.sleep(0.5)
        assert [finish(child) for child in children] == ["done"] * 5


def test_a_fork_does_not_wait_for_ever_for_a_thread_that_waits_for_it(monkeypatch):
    monkeypatch.setattr(forks, "_FORK_SECONDS", 0.5)
    model = nn.Linear(2, 2)
    is_inside, is_forked = threading.Event(), threading.Event()

    def waits(x):
        is_inside.set()
        assert is_forked.wait(SECONDS)
        return model(x)

    function = fg.compile(waits, backend="eager", cache=False)
    before = process()
    thread = threading.Thread(target=lambda: function(torch.ones(2)), daemon=True)
    thread.start()
    assert is_inside.wait(SECONDS)
    check_later = fg.compile(wave, backend="eager", cache=False)

    def work():
        assert str(process()) == str(before)
        check(check_later, 4)
        is_forked.set()
        function(torch.ones(2))  # whose lock the other thread had

    child = start(work)
    is_forked.set()
    thread.join(SECONDS)
    assert finish(child) == "done"


def test_a_function_that_forks_while_it_is_captured_leaves_both_processes_whole():
    """Python seeds its random numbers anew in the child, which a capture refuses there; the locks are given back."""
    children = []

    def forks_inside(x):
        children.append(os.fork())
        return x * 2

    function = fg.compile(forks_inside, backend="eager", cache=False)
    parent, status, doubled = os.getpid(), 1, None
    try:
        try:
            doubled = function(torch.ones(2))
        except fg.CaptureError:
            assert os.getpid() != parent
        check(fg.compile(wave, backend="eager", cache=False), 4)
        status = 0
    finally:
        if os.getpid() != parent:
            os._exit(status)
    assert torch.equal(doubled, torch.full((2,), 2.0))
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
