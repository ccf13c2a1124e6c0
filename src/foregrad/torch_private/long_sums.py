"""Long sums: how a kernel of Inductor's adds up a number of values that varies between calls.

Inductor adds more than 4096 floats in chunks, which is more exact and slower, and would make a kernel for fewer and one
for more. Here a number that varies is added up in chunks if it is larger in the call that is compiled, which is right
for any; else one after another, which is exact enough up to 16 times as many, and that is a guard.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sympy
import torch

from foregrad.process.temporary import replaced

_CHUNK, _MOST = 4096, 16 * 4096


@contextmanager
def sums_of_any_length() -> Iterator[None]:
    """Let Inductor write kernels like that, in this thread."""
    from torch._inductor.codegen.cpp import CppKernel
    from torch._inductor.virtualized import V

    decide: Any = CppKernel.need_use_acc_helper
    here = threading.get_ident()

    def need_use_acc_helper(kernel: Any, kind: str, dtype: torch.dtype, use_scalar: bool) -> Any:
        ranges = kernel.call_ranges
        length = math.prod(ranges[kernel.reduction_depth :]) if kind == "sum" and ranges is not None else 0
        is_fixed = not isinstance(length, sympy.Expr) or not length.free_symbols
        if threading.get_ident() != here or is_fixed or dtype is not torch.float:
            return decide(kernel, kind, dtype, use_scalar)
        sizes: Any = V.graph.sizevars
        if sizes.statically_known_leq(length, _CHUNK):
            return False
        if sizes.optimization_hint(length) > _CHUNK:
            return True
        return not sizes.evaluate_expr(sympy.Le(length, _MOST))

    with replaced(CppKernel, "need_use_acc_helper", need_use_acc_helper):
        yield
