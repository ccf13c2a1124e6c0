"""Numbers that a kernel of Inductor's takes, read once before its loops.

    void kernel(const double* in_ptr0, float* out_ptr0) {    void kernel(const double* in_ptr0, float* out_ptr0) {
        for (...) {                                              auto const number_in_ptr0 = in_ptr0[0];
            auto tmp0 = in_ptr0[static_cast<int64_t>(0L)];  ──▶  for (...) {
            auto tmp1 = c10::convert<float>(tmp0);                   auto tmp0 = number_in_ptr0;

Inductor reads them for each vector, and compilers leave it so, since for all that they know a vector that is stored
might be one of the numbers: with a learning rate and the like that is a good part of the loop of an optimizer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from foregrad.process.temporary import replaced


@contextmanager
def numbers_read_once() -> Iterator[None]:
    """Let Inductor write kernels like that, in this thread."""
    from torch._inductor.codegen import cpp
    from torch._inductor.codegen.common import KernelArgs
    from torch._inductor.virtualized import V

    load, here = cpp.CppKernel.load, threading.get_ident()

    class Arguments(KernelArgs):
        """Arguments of a kernel, which knows those that are numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.numbers: dict[str, str] = {}  # by the argument that each is read from

        def number(self, name: str) -> str | None:
            is_double = name in V.graph.graph_inputs and V.graph.get_dtype(name) is torch.float64
            if not is_double or V.graph.get_numel(name) != 1:
                return None
            argument = self.input(name)
            return self.numbers.setdefault(argument, f"number_{argument}")

        def aliases(self) -> Iterator[tuple[str, str]]:
            """What Inductor defines before the loops. A number that the kernel may write is read where it is used."""
            yield from super().aliases()
            kind = "const&" if "double*" in self.cpp_argdefs()[2] else "const"
            yield from ((f"{kind} {number}", f"{argument}[0]") for argument, number in self.numbers.items())

    def new_arguments() -> KernelArgs:
        return Arguments() if threading.get_ident() == here else KernelArgs()

    def load_once(kernel: Any, name: str, index: Any) -> Any:
        number = kernel.args.number(name) if isinstance(kernel.args, Arguments) else None
        if number is None:
            return load(kernel, name, index)
        found = kernel.cse.generate(kernel.loads, number, dtype=torch.float64)
        found.update_on_args("load", (kernel, name, index), {})
        return found

    with replaced(cpp, "KernelArgs", new_arguments), replaced(cpp.CppKernel, "load", load_once):
        yield
