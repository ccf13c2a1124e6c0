"""Which backend a name stands for, and which is the default on this machine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from foregrad.backends.backend import Backend
from foregrad.backends.compiling import AOTI, Inductor, compiles
from foregrad.backends.eager import compile_graph
from foregrad.backends.toolchain import compiler
from foregrad.process.environment import BACKEND, WINOGRAD

if TYPE_CHECKING:
    from foregrad.program.program import Program

NAMES = ("eager", "inductor", "aoti")


def passes_for(backend: Backend) -> tuple[Callable[[Program], Program], ...]:
    """What a program goes through before this backend splits and compiles it."""
    return (suit_kernels,) if compiles(backend) else ()


def suit_kernels(program: Program) -> Program:
    """Sizes that vary as inputs, views in place of places in memory, images laid out as the kernels of convolutions
    want them, one long product for the sum of many or for many with one factor, no gaps in memory, and weights updated
    while they are in cache."""
    from foregrad.passes.channels_last import channels_last
    from foregrad.passes.dense_writes import without_gaps
    from foregrad.passes.early_updates import early_updates
    from foregrad.passes.size_inputs import size_inputs
    from foregrad.passes.stacked_products import stacked
    from foregrad.passes.strided_access import by_views
    from foregrad.passes.sums_of_products import one_product

    return early_updates(without_gaps(stacked(one_product(channels_last(by_views(size_inputs(program)))))))


def choose(backend: str | Backend | None, *, rng: str = "eager", regions: str = "auto") -> Backend:
    """A backend by its name; None is the default: `FOREGRAD_BACKEND`, else Inductor where there is a compiler."""
    if rng not in ("eager", "fast"):
        raise ValueError(f'rng is "eager" or "fast", not {rng!r}')
    if regions not in ("auto", "off"):
        raise ValueError(f'regions is "auto" or "off", not {regions!r}')
    if callable(backend):
        return backend
    name = backend if backend is not None else BACKEND.value or "inductor"
    if name not in NAMES:
        raise ValueError(f"there is no backend {name!r}; there are {', '.join(NAMES)}, or a function of your own")
    if name != "eager" and compiler() is None:
        _warn_no_compiler()
        name = "eager"
    if name == "eager":
        return compile_graph
    if name == "aoti":
        return AOTI(rng=rng)
    return Inductor(rng=rng, regions=regions, winograd=not WINOGRAD.is_off)


def on_this_machine(backend: Backend) -> Backend:
    """A backend that was chosen in another process; op by op where it needs a C++ compiler, and there is none."""
    if not compiles(backend) or compiler() is not None:
        return backend
    _warn_no_compiler()
    return compile_graph


def can_write(backend: Backend) -> bool:
    """Whether a backend takes graphs that write to their inputs."""
    return backend is compile_graph or compiles(backend)


@cache
def _warn_no_compiler() -> None:
    warnings.warn(
        'no C++ compiler was found, so foregrad runs op by op with backend="eager": the same results, without fused '
        "loops; small and memory-bound models take up to several times longer. Install g++, or name a compiler in CXX.",
        stacklevel=4,
    )
