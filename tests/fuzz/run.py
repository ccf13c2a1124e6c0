"""Running seeds against a compiler, in one process or several."""

from __future__ import annotations

import functools
import multiprocessing
import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

from tests.fuzz.check import check
from tests.fuzz.generate import program
from tests.fuzz.program import FuzzProgram

CHUNK = 20


def results(seeds: range, about: str, against: str, jobs: int) -> Iterable[tuple[int, str | None]]:
    chunks = [(seeds[at : at + CHUNK], about, against) for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        yield from (result for chunk in chunks for result in run_chunk(chunk))
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for done in pool.map(run_all_of_chunk, chunks):
            yield from done


def run_all_of_chunk(chunk: tuple[range, str, str]) -> list[tuple[int, str | None]]:
    torch.set_num_threads(1)
    return list(run_chunk(chunk))


def run_chunk(chunk: tuple[range, str, str]) -> Iterator[tuple[int, str | None]]:
    seeds, about, against = chunk
    for seed in seeds:
        yield seed, verdict_of(program(seed, about), against)


def verdict_of(candidate: FuzzProgram, against: str) -> str | None:
    """The verdict; an error that escapes the comparer is a failure too."""
    try:
        return TARGETS[against](candidate)
    except Exception as error:
        name = type(error).__name__
        return f"comparer stopped: eager ran, compiled {name} ({error})"


# --- what is compared with eager ---------------------------------------------------------------------------


def with_foregrad(candidate: FuzzProgram) -> str | None:
    import foregrad as fg

    passes = (functools.partial(recompute_some, candidate),) if candidate.scenario.marks else ()
    return check(candidate, lambda fn: fg.compile(fn, backend="eager", passes=passes), (fg.CaptureError,))


def recompute_some(candidate: FuzzProgram, program: Any) -> Any:
    """Mark a share of the values, chosen by their names."""

    def is_chosen(node: Any) -> bool:
        return random.Random(f"{candidate.seed} {node.name}").random() < candidate.scenario.marks

    return program.recompute(is_chosen, prefer=True)


def with_sizes_that_vary(candidate: FuzzProgram) -> str | None:
    import foregrad as fg

    return check(candidate, lambda fn: fg.compile(fn, backend="eager", dynamic=True), (fg.CaptureError,))


def with_inductor(candidate: FuzzProgram) -> str | None:
    """Compiled to loops: seconds for each program, and values to rounding."""
    import foregrad as fg

    def compiled(fn: Callable) -> Callable:
        return fg.compile(fn, backend="inductor", cache=False, progress=False)

    return check(candidate, compiled, (fg.CaptureError,), is_bitwise=False)


def with_sizes_that_vary_in_loops(candidate: FuzzProgram) -> str | None:
    """The same, with all sizes of arguments as inputs of the compiled code."""
    import foregrad as fg

    def compiled(fn: Callable) -> Callable:
        return fg.compile(fn, backend="inductor", dynamic=True, cache=False, progress=False)

    return check(candidate, compiled, (fg.CaptureError,), is_bitwise=False)


def with_torch(candidate: FuzzProgram) -> str | None:
    """torch's own ahead-of-time layer, to see the fuzzer find known differences."""
    from functorch.compile import aot_function, nop

    return check(candidate, lambda fn: aot_function(fn, nop))


def with_itself(candidate: FuzzProgram) -> str | None:
    """Eager against eager: any difference is a fault of the fuzzer."""
    return check(candidate, lambda fn: fn)


TARGETS: dict[str, Callable[[FuzzProgram], str | None]] = {
    "foregrad": with_foregrad,
    "dynamic": with_sizes_that_vary,
    "inductor": with_inductor,
    "dynamic-inductor": with_sizes_that_vary_in_loops,
    "torch": with_torch,
    "itself": with_itself,
}
