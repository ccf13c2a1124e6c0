"""What shared libraries cost to compile and to call, against Inductor in the process and against eager.

    python -m benchmarks.aoti

Every compilation is one of its own process with an empty cache of Inductor's; what is asked once for each machine (the
toolchain, precompiled headers, the common part of all libraries) has been asked before. Times are those of the first
forward and backward of an MLP, capture included, imports not; CPU seconds count the compilers that were started.
"""

import argparse
import importlib
import itertools
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import torch

import foregrad as fg
from benchmarks.measure import add_options, interleave, start, table, verdict
from benchmarks.models import MLP
from foregrad.backends.toolchain import prepare

BACKENDS = ("inductor", "aoti")


def problem():
    torch.manual_seed(0)
    return MLP(), torch.randn(32, 64), torch.randint(10, (32,))


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def compile_once(backend: str) -> None:
    """In a process of its own: print the wall and CPU seconds of preparing the toolchain, and of the first step."""
    importlib.import_module("torch._inductor.compile_fx")
    model, x, classes = problem()
    marks = [(time.perf_counter(), cpu_seconds())]
    prepare()
    marks.append((time.perf_counter(), cpu_seconds()))
    fg.compile(model, backend=backend)(x, classes).backward()
    marks.append((time.perf_counter(), cpu_seconds()))
    print(*(b - a for before, after in itertools.pairwise(marks) for a, b in zip(before, after, strict=True)))


def compile_apart(backend: str) -> list[float]:
    with tempfile.TemporaryDirectory() as empty:
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": empty}
        command = [sys.executable, "-m", "benchmarks.aoti", "--compile", backend]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    return [float(word) for word in said.splitlines()[-1].split()]


def compare_compilation(console, rounds: int) -> None:
    for backend in BACKENDS:
        compile_apart(backend)  # what is paid once for each machine
    times: dict[str, list[list[float]]] = {backend: [] for backend in BACKENDS}
    for _ in range(rounds):
        for backend in BACKENDS:
            times[backend].append(compile_apart(backend))
    result = table(f"First forward and backward, medians of {rounds}", "", "toolchain s", "wall s", "CPU s")
    medians = {b: [statistics.median(column) for column in zip(*t, strict=True)] for b, t in times.items()}
    for backend, (probing, _, wall, cpu) in medians.items():
        result.add_row(backend, f"{probing:.3f}", f"{wall:.2f}", f"{cpu:.2f}")
    console.print(result)
    inductor, library = medians["inductor"], medians["aoti"]
    console.print(f"aoti / inductor, wall: {verdict(library[2] / inductor[2], at_most=2)}")
    console.print(f"aoti / inductor, CPU: {verdict(library[3] / inductor[3], at_most=2)}")


def compare_calls(console, options: argparse.Namespace) -> None:
    model, x, classes = problem()
    compiled = {backend: fg.compile(model, backend=backend) for backend in (*BACKENDS, "eager")}

    def step(target):
        return lambda: target(x, classes).backward()

    steps = {"torch": step(model)} | {f"backend={b}": step(target) for b, target in compiled.items()}
    for call in steps.values():
        call()
    times = interleave(steps, rounds=options.rounds, clock=options.clock, calls=50, title="calls")
    result = table("A later forward and backward", "", "us")
    for name, timing in times.items():
        result.add_row(name, timing.text(1e-6, 1))
    console.print(result)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, rounds=20)
    parser.add_argument("--compilations", type=int, default=3, help="rounds of compilation")
    parser.add_argument("--compile", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.compile:
        compile_once(options.compile)
        return
    console = start(options)
    compare_compilation(console, options.compilations)
    compare_calls(console, options)


if __name__ == "__main__":
    main()
