"""What of libraries is not told in a read state, each with its reason. A change in here is not seen by a key."""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

from foregrad.cache.key.unhashable_reads import words
from foregrad.runtime.guards.nodes import original_of
from foregrad.runtime.guards.walk import Boundary
from foregrad.torch_private.global_state import TORCH_NAMESPACES, undisabled

#: A module that holds patterns put together in the order of a set.
_IN_NO_ORDER = "tokenize"

#: Packages that captures and compilers load, and fill: a process that finds its programs does not. Settings of the
#: compilers are in the settings of torch.
_COMPILERS = words(
    "foregrad sympy mpmath torch._dynamo torch._inductor torch._functorch torch._subclasses torch._decomp torch._refs "
    "torch._prims torch._prims_common torch._meta_registrations torch._export torch.export torch.fx "
    "torch.utils._sympy torch._guards torch._logging torch._library torch._ops torch._compile"
)


def boundary_around(loaded_meanwhile: frozenset[str], *, is_after_capture: bool) -> Boundary:
    """What a read state does not go into: also modules that a capture has loaded, which are as their files say."""

    def is_outside(module: str) -> bool:
        if module == _IN_NO_ORDER or module in loaded_meanwhile:
            return True
        if module.startswith("torch.ops.") and module.split(".")[2] in TORCH_NAMESPACES:
            return True  # made when it is first asked for, by whatever asks
        return any(module == one or module.startswith(f"{one}.") for one in _COMPILERS)

    return Boundary(cache(is_outside), _unwrapped, is_after_capture)


def _unwrapped(value: Any) -> Any:
    """A function without what stands in for it while some thread records, or what keeps torch's compiler out of it."""
    return undisabled(original_of(value)) if type(value) is FunctionType else value
