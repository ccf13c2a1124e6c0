"""What foregrad leaves of a process in which it compiles: a process that test_process_is_left_alone.py starts.

python -m tests.backends.left_alone WAY
"""

import builtins
import gc
import io
import json
import logging
import math
import os
import random
import sys
import threading
import time
import warnings
from contextlib import nullcontext
from pathlib import Path
from types import FunctionType

import pytest
import torch
import torch._inductor.compile_fx
from torch._inductor import async_compile, codecache, config, cpp_builder, cpu_vec_isa, decomposition, graph, lowering
from torch._inductor.codegen import cpp_wrapper_cpu
from torch._inductor.utils import run_and_get_code
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.backends.cpp_builds import Builds

MODULES = (async_compile, codecache, cpp_builder, cpu_vec_isa, decomposition, graph, lowering)
CLASSES = (
    async_compile.AsyncCompile, codecache.CacheBase, codecache.CUDACodeCache, cpp_wrapper_cpu.CppWrapperCpu,
    *{base for isa in cpu_vec_isa.supported_vec_isa_list for base in type(isa).__mro__[:-1]},
)  # fmt: skip
#: What recordings and optimizers use.
HOMES = (
    builtins,
    io,
    time,
    math,
    torch.random,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.amp.GradScaler,
    logging.Logger,
)
LOGGERS = ("torch._subclasses.fake_tensor", "torch._inductor.ir", "torch.fx.experimental.symbolic_shapes")
#: Functions that remember what depends on their arguments alone, such as the name of a compiler: all may share that.
SHARED = ("cpp_compiler_search", "get_compiler_version_info", "_is_", "split_aot_inductor_output_path")
SHARED += ("init_backend_registration", "fast_random_decomps")  # which take no arguments
#: How files end that are there while others are written.
BRIEF = (".lock", ".tmp")


#: Functions of C that Python code has looked up.
looked_up: set[str] = set()
sys.addaudithook(lambda event, given: looked_up.add(str(given[1])) if event == "ctypes.dlsym" else None)


@torch.library.custom_op("left_alone::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x * 2


twice.register_fake(torch.empty_like)


def state() -> dict[str, str]:
    """All that foregrad, or Inductor in its name, might have changed, as texts."""
    homes = (*MODULES, *CLASSES, *HOMES)
    found = {f"{home.__name__}.{name}": one for home in homes for name, one in list(vars(home).items())}
    told = {name: str(id(one)) for name, one in found.items()}
    told |= {f"inside {name}": ", ".join(noted_in(one)) for name, one in found.items()}
    told |= {
        f"memory of {name}": str(one.cache_info().currsize)
        for name, one in found.items()
        if type(one).__name__ == "_lru_cache_wrapper" and not name.rpartition(".")[2].startswith(SHARED)
    }
    told |= {f"setting {name}": repr(one) for name, one in config.get_config_copy().items()}
    told |= {f"variable {name}": one for name, one in os.environ.items()}
    told |= {f"lowering of {op}": str(id(one)) for op, one in lowering.lowerings.items()}
    told |= {f"layouts of {op}": str(id(one)) for op, one in lowering._maybe_layout_constraints.items()}
    told |= {f"decomposition of {op}": str(id(one)) for op, one in decomposition.decompositions.items()}
    told |= {f"noted {op}": "" for op in (*lowering.fallbacks, *lowering.needs_realized_inputs)}
    told |= {f"logger {name}": str(logging.getLogger(name).filters) for name in LOGGERS}
    told |= {f"instruction set {one}": str(vars(one)) for one in cpu_vec_isa.supported_vec_isa_list}
    told["filters of warnings"] = str(warnings.filters)
    told["garbage collection"] = str((gc.isenabled(), gc.get_threshold(), gc.callbacks))
    told["settings of malloc"] = str("mallopt" in looked_up)
    told["anomaly mode"] = str(torch.is_anomaly_enabled())
    told["threads"] = str(torch.get_num_threads())
    return told


def noted_in(value: object) -> list[str]:
    """What others than torch have noted at the function inside a wrapper, as torch notes its own variants of it."""
    inside = getattr(value, "__wrapped__", None) if isinstance(value, FunctionType) else None
    noted = vars(inside) if isinstance(inside, FunctionType) else {}
    return [name for name, one in noted.items() if not getattr(one, "__module__", "").startswith("torch.")]


def compile_once(size: int, backend: str = "inductor") -> None:
    """Compile what was never built before: fused loops, random numbers, an op that Inductor does not know."""
    number = random.SystemRandom().random()

    def f(x, w):
        y = torch.nn.functional.dropout((x @ w).sin() * number, 0.5)
        return (y.softmax(0) * twice(w.detach())[0]).sum()

    given = [torch.randn(size, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)]
    fg.compile(f, backend=backend, cache=False, progress=False)(*given).backward()
    assert given[0].grad is not None


def train_once() -> None:
    """Record and compile a step that prints, draws, reads files and clocks, and has an optimizer."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 64), torch.nn.Dropout(0.1), torch.nn.Linear(64, 3))
    optimizer = torch.optim.AdamW(model.parameters())

    def train(x):
        print("a step", math.floor(time.time()) and "", file=sys.stderr)
        optimizer.zero_grad()
        loss = checkpoint(model, x, use_reentrant=False).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step = fg.step(model, optimizer, cache=False, progress=False, python="allow")(train)
    for _ in range(3):
        step(torch.randn(500, 3))
    assert len(step.captures) == 2


def compile_all() -> None:
    compile_once(3000)
    compile_once(8, "aoti")
    train_once()


def compile_at_once() -> None:
    threads = [threading.Thread(target=compile_once, args=(size,)) for size in (1500, 2500)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()


def fail(error: BaseException) -> None:
    """Compile with a compiler that cannot be run."""

    def run(self: Builds, command: list[str], folder: Path) -> tuple[int, str]:
        ran.append(command)
        raise error

    ran: list[list[str]] = []
    Builds._run = run
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt) if is_interrupt else nullcontext():
        compile_once(3000)
    assert ran


def fail_to_probe() -> None:
    def of(path: str) -> toolchain.Toolchain:
        raise RuntimeError("there is no such machine")

    toolchain.Toolchain.of = of
    compile_once(3000)


WAYS = {
    "backends": compile_all,
    "threads": compile_at_once,
    "error": lambda: fail(OSError("no compiler today")),
    "interrupt": lambda: fail(KeyboardInterrupt()),
    "probe": fail_to_probe,
}


def changes(way: str) -> dict[str, list[str | None]]:
    before = state()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.FallbackWarning)
        WAYS[way]()
    gc.collect()  # where programs were dropped, the next full collection hands their memory back
    after = state()
    names = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return {name: [before.get(name), after.get(name)] for name in names}


def compile_as_the_user() -> dict[str, object]:
    """What `torch.compile` writes for a function, and where."""

    def f(x, w):
        return (torch.relu(x @ w).softmax(1) * twice(w.detach())[0]).sum()

    def run():
        torch.compile(f, fullgraph=True)(x, w).backward()

    x, w = torch.randn(64, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    _, code = run_and_get_code(run)
    folder = Path(codecache.cache_dir())
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix not in BRIEF]
    texts = {file.name: file.read_text() for file in files if file.suffix in (".py", ".cpp", ".h")}
    entries = {file.parent if file.suffix == "" else file for file in files}  # those of its caches also tell times
    return {
        "code": code,
        "folder": str(folder),
        "files": sorted(str(one.relative_to(folder)) for one in entries),
    } | texts


def main(way: str) -> None:
    torch.set_num_threads(1)
    if way in WAYS:
        told: dict[str, object] = {**changes(way)}
    else:
        if way == "after foregrad":
            compile_once(3000)
        told = compile_as_the_user()
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
