"""Compiles programs, and says what came of them: a process that test_broken_compiler.py starts.

python -m tests.backends.first_build CACHE fused light as_library
"""

import json
import sys
import warnings

import torch

import foregrad as fg
from foregrad.backends.toolchain import prepare


def fused(x, w):
    return (torch.relu(x @ w).sin().softmax(1) * x).mean()


def light(x, w):
    return torch.bmm(torch.tanh(x @ w).view(2, 4, 3), w.expand(2, 3, 3)).cos().sum()


def as_library(x, w):
    return (x @ w).sigmoid().sum()


PROGRAMS = {"fused": (fused, "inductor", 3000), "light": (light, "inductor", 8), "as_library": (as_library, "aoti", 8)}


def main(cache: str, *names: str) -> None:
    torch.manual_seed(0)
    told = {name: build(*PROGRAMS[name], cache) for name in names}
    try:
        told["instruction sets"] = prepare().instruction_sets
    except RuntimeError as error:
        told["instruction sets"] = str(error)
    print(json.dumps(told))


def build(function, backend: str, size: int, cache: str) -> dict[str, object]:
    compiled = fg.compile(function, backend=backend, cache=cache, progress=False)
    given = [torch.randn(size, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", fg.FallbackWarning)
        found = torch.autograd.grad(compiled(*given), given)
    torch.testing.assert_close(found, torch.autograd.grad(function(*given), given))
    return {
        "origin": compiled.captures[0].origin.how,
        "warnings": [str(one.message) for one in said if issubclass(one.category, fg.FallbackWarning)],
        "fallbacks": [str(one) for one in fg.explain(compiled).explained[0].fallbacks],
        "has library": has_library(compiled),
    }


def has_library(compiled) -> bool:
    """Whether what a call runs is a shared library, of its forward at least."""
    run = compiled.captures[0].stage.run_forward.run
    return any("Library" in type(one).__name__ for one in (run, getattr(run, "run", None), getattr(run, "take", None)))


if __name__ == "__main__":
    main(*sys.argv[1:])
