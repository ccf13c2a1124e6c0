"""Compiles, is interrupted again and again, and says what is left: a process that test_interrupts.py starts.

python -m tests.backends.interrupted BACKEND FOLDER SEED INTERRUPTS process|group
"""

import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import foregrad as fg

PATIENCE_SECONDS = 5.0


def main(backend: str, folder: str, seed: str, interrupts: str, whom: str) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that works in the background has it ignored
    choose = random.Random(int(seed))
    once(backend, choose.randrange(3, 1000))  # imports, what is asked once for each machine
    began = time.perf_counter()
    once(backend, choose.randrange(1000, 2000))
    usual = time.perf_counter() - began
    moments, left = [], []
    size = choose.randrange(2000, 3000)
    for _ in range(int(interrupts)):
        timer = threading.Timer(usual * choose.random(), interrupt, [whom])
        began = time.perf_counter()
        try:
            timer.start()
            once(backend, size)
            timer.join()
            time.sleep(PATIENCE_SECONDS)  # the interrupt is on its way
        except KeyboardInterrupt:
            moments.append(round(time.perf_counter() - began, 2))
        left += [*processes(folder), *unfinished(folder)]
    once(backend, size)
    print(json.dumps({"usual": usual, "moments": moments, "left": left}))


def interrupt(whom: str) -> None:
    """What Ctrl-C does in a terminal, to all of the group, or what `kill -INT` does."""
    if whom == "group":
        os.killpg(os.getpgid(0), signal.SIGINT)
    else:
        os.kill(os.getpid(), signal.SIGINT)


def once(backend: str, size: int) -> None:
    """Compile something with several kernels, and compare."""

    def f(x, w):
        y = (x @ w).sin().softmax(0)
        return (y @ w.t()).cos().sum()

    x, w = torch.randn(size, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    expected = torch.autograd.grad(f(x, w), (x, w))
    found = torch.autograd.grad(fg.compile(f, backend=backend, progress=False)(x, w), (x, w))
    torch.testing.assert_close(found, expected)


def processes(folder: str) -> list[str]:
    """Other processes that work in a folder, if they do not end soon."""
    for _ in range(int(PATIENCE_SECONDS / 0.1)):
        lines = [read(file) for file in Path("/proc").glob("[0-9]*/cmdline") if file.parent.name != str(os.getpid())]
        found = [line for line in lines if folder in line and "tests.backends.interrupted" not in line]
        if not found:
            return []
        time.sleep(0.1)
    return found


def read(file: Path) -> str:
    try:
        return file.read_text().replace("\0", " ")
    except OSError:  # it has ended
        return ""


def unfinished(folder: str) -> list[str]:
    marks = ("building-", "_CxxBuild", ".tmp")
    names = [name for _, folders, files in os.walk(folder) for name in (*folders, *files)]
    return [name for name in names if name.startswith(".") or any(mark in name for mark in marks)]


if __name__ == "__main__":
    main(*sys.argv[1:])
