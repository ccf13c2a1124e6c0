"""The parts of torch's Inductor that foregrad uses.

Inductor is imported inside the functions, since that takes seconds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for_all
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import fx

from foregrad.core.spec import Spec, symbols_in
from foregrad.process.forks import divided, in_child
from foregrad.process.temporary import Attribute, TemporaryChange, replaced
from foregrad.torch_private.fake_tensors import FakeTensorMode, quiet_torch
from foregrad.torch_private.inductor_text import Kernel
from foregrad.torch_private.kernel_numbers import numbers_read_once
from foregrad.torch_private.long_sums import sums_of_any_length
from foregrad.torch_private.serialization import load_extension
from foregrad.torch_private.while_compiling import inductor_settings, while_compiling


def fake_mode() -> FakeTensorMode:
    """A mode for fake tensors of fixed shapes, with what Inductor's own cache asks for."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)


def mode_for(specs: Iterable[Spec | None]) -> FakeTensorMode:
    """A mode for fake tensors that look like these: that of the sizes that vary in them, where any do."""
    found: FakeTensorMode | None = next((size.mode for spec in specs for size in symbols_in(spec)), None)
    return fake_mode() if found is None else found


def trace_decomposed(
    function: Callable[..., Any], inputs: Sequence[Any], decompositions: dict[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """The graph of a function on fake tensors, each op replaced as the table says."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        return make_fx(function, decomposition_table=decompositions)(*inputs)


@contextmanager
def inductor_draws_like_eager() -> Iterator[None]:
    """Let Inductor draw random numbers by the kernels that eager uses, in the order of the graph.

    Its own form of `bernoulli` writes to a buffer that fused code may already have read.
    """
    with _bernoulli.held(), inductor_settings(fallback_random=True, reorder_for_peak_memory=False):
        yield


class _BernoulliOfEager(TemporaryChange):
    """Inductor's lowering of one op, which all threads share, replaced by a call of the kernel."""

    places = ("torch._inductor.lowering.lowerings",)
    before: Any = None

    def change(self) -> None:
        from torch._inductor.lowering import fallback_handler, lowerings

        func = torch.ops.aten.bernoulli.p
        self.before = lowerings[func]
        lowerings[func] = fallback_handler(func, add_to_fallback_set=False)

    def put_back(self) -> None:
        from torch._inductor.lowering import lowerings

        if self.before is not None:
            lowerings[torch.ops.aten.bernoulli.p], self.before = self.before, None


_bernoulli = _BernoulliOfEager()


class _ConvolutionsOfAnySize(TemporaryChange):
    """Inductor's lowering of the backward of a convolution. On a CPU it leaves it to torch, but not before it has fixed
    all strides, and sizes with them, to see which is the largest; with the strides of the graph it need not look."""

    places = ("torch._inductor.lowering.lowerings", "torch._inductor.lowering._maybe_layout_constraints")
    before: Any = None

    def change(self) -> None:
        from torch._inductor import lowering

        func = torch.ops.aten.convolution_backward.default
        if self.before is None:
            self.before = lowering.lowerings[func], lowering._maybe_layout_constraints.get(func)
        lowering.lowerings[func] = lowering.fallback_handler(func, add_to_fallback_set=False)
        lowering._maybe_layout_constraints[func] = lowering.constrain_to_fx_strides

    def put_back(self) -> None:
        from torch._inductor import lowering

        func = torch.ops.aten.convolution_backward.default
        if self.before is not None:
            lowering.lowerings[func], constraint = self.before
            lowering._maybe_layout_constraints.pop(func, None)
            if constraint is not None:
                lowering._maybe_layout_constraints[func] = constraint
            self.before = None


_convolutions = _ConvolutionsOfAnySize()


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """What Inductor wants decomposed, under its present settings.

    Its functions expect that its entry point was imported: that of max pooling asks `torch._inductor.lowering`."""
    from torch._inductor import compile_fx as _entry_point  # noqa: F401  for what it imports
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def draw_inside_loops(graph: fx.GraphModule, mode: FakeTensorMode) -> None:
    """Let Inductor draw random numbers of its own, inside the loops that use them."""
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V

    with V.set_fake_mode(mode):
        replace_random_passes(graph)


@while_compiling
def compile_with_inductor(graph: fx.GraphModule, inputs: Sequence[Any], fixed: Sequence[int], **kind: Any) -> Any:
    """Compile a decomposed graph; the layouts of the outputs at `fixed` are kept. Takes a list, and empties it.

    Inductor would lay out all images with their channels last; they have the layouts that the program gives them."""
    from torch._inductor.compile_fx import compile_fx_inner

    graph.graph.output_node().meta["user_visible_output_idxs"] = list(fixed)
    asserts = {"size_asserts": False, "alignment_asserts": False}  # our guards have looked at every input
    varies = any(isinstance(one, torch.SymInt) for one in inputs)
    of_any_size = _convolutions.held() if varies else nullcontext()
    settings = inductor_settings(**asserts, layout_optimization=False)
    with _fallbacks.held(True), sums_of_any_length(), of_any_size, settings:
        return compile_fx_inner(graph, inputs, **kind)


class _Fallbacks(TemporaryChange):
    """Ops that Inductor leaves to torch because it does not know them. It would remember them, and the layouts that
    they were given: others in a backward than in a forward."""

    places = (
        "torch._inductor.graph.make_fallback",
        *(f"torch._inductor.lowering.{name}" for name in ("lowerings", "fallbacks", "needs_realized_inputs")),
        "torch._inductor.lowering._maybe_layout_constraints",
    )

    def __init__(self) -> None:
        super().__init__()
        self._attribute: Attribute | None = None
        self._made: list[Any] = []

    def change(self) -> None:
        from torch._inductor import graph

        self._attribute = self._attribute or Attribute(graph, "make_fallback", self._make)
        self._attribute.change()

    def put_back(self) -> None:
        from torch._inductor import lowering

        if self._attribute is not None:
            self._attribute.put_back()
        while self._made:
            lowering.lowerings.pop(self._made[-1], None)
            lowering._maybe_layout_constraints.pop(self._made[-1], None)
            lowering.needs_realized_inputs.discard(self._made[-1])
            lowering.fallbacks.discard(self._made[-1])
            self._made.pop()

    def _make(self, op: Any, **options: Any) -> None:
        from torch._inductor import lowering

        if self.here:  # else it is a compilation of somebody else's
            self._made.append(op)
        lowering.make_fallback(op, **options)


_fallbacks = _Fallbacks()


@contextmanager
def built_later(
    build: Callable[[dict[str, Kernel], str], Callable[[], dict[str, Any]]],
) -> Iterator[list[Callable[[], None]]]:
    """Let Inductor return before its kernels are built; what is yielded waits for them.

    `build` begins with the kernels of a graph, by name, and the text of the module that calls them, and returns what
    waits for their functions.
    """
    from torch._inductor.async_compile import AsyncCompile

    waits: list[Callable[[], None]] = []
    build_alone, wait_for_others, here = AsyncCompile.cpp_pybinding, AsyncCompile.wait, threading.get_ident()

    def kernel(compiler: Any, types: list[str], source: str) -> Any:
        return Kernel.of(source) if threading.get_ident() == here else build_alone(compiler, types, source)

    def wait(compiler: Any, scope: dict[str, Any]) -> None:
        if threading.get_ident() != here:
            wait_for_others(compiler, scope)  # a compilation of somebody else's
            return
        kernels = {name: value for name, value in scope.items() if isinstance(value, Kernel)}
        functions = build(kernels, Path(scope["__file__"]).read_text())

        def finish() -> None:
            scope.update(functions())
            wait_for_others(compiler, scope)

        waits.append(finish)

    with (
        replaced(AsyncCompile, "cpp_pybinding", kernel),
        replaced(AsyncCompile, "wait", wait),
        numbers_read_once(),
    ):
        yield waits


def num_builds_at_once() -> int:
    """How many runs of the C++ compiler Inductor has at once."""
    from torch._inductor.async_compile import get_compile_threads

    return get_compile_threads()


@while_compiling
def build_module(source: str) -> Callable[[], Any]:
    """Begin to build the C++ of a Python module that is called `kernel`; what is returned waits for the module.

    Where Inductor runs one thing at a time, it is built when it is waited for: torch 2.13 would hold the lock of a
    build while it runs it, and wait for itself."""
    from torch._inductor.async_compile import AsyncCompile

    begun: list[Future[Any]] = []

    def submit(task: Callable[..., Any]) -> Any:
        begun.append(AsyncCompile.submit(while_compiling(task)))
        return begun[-1]

    begin = submit if num_builds_at_once() > 1 else None
    load = _modules().load_async(source, "cpu", submit_fn=begin)

    def loaded() -> Any:
        with divided():
            wait_for_all(begun)
        return load()

    return while_compiling(loaded)


@cache
def _modules() -> Any:
    """Where Inductor keeps modules of C++ that it has built or begun: ours apart from others. Its own loader would tell
    them by a variable of the environment, which stays, where the data of a tensor is; ours ask torch."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class Modules(CppPythonBindingsCodeCache):
        cache: dict[str, Callable[[], Any]] = {}  # noqa: RUF012  # as in the class that it comes from

        @classmethod
        def _load_library_inner(cls, path: str, key: str) -> Any:
            return load_extension("kernel", Path(path))

    return Modules


#: C++ of a module that finds out, when it is loaded, where torch has the function `data_of` a tensor.
FIND_DATA_OF = r"""
static void* (*data_of)(PyObject* tensor);

static bool find_data_of() {
    PyObject* home = PyImport_ImportModule("torch._C._dynamo.guards");
    PyObject* address = home ? PyObject_GetAttrString(home, "_torchinductor_pyobject_tensor_data_ptr") : nullptr;
    if (address) data_of = reinterpret_cast<decltype(data_of)>(PyLong_AsVoidPtr(address));
    Py_XDECREF(address);
    Py_XDECREF(home);
    return !PyErr_Occurred();
}
"""


def forget_unfinished_kernels() -> None:
    """Drop what Inductor has begun and still keeps in the process; it is begun anew when it is asked for again."""
    from torch._inductor import codecache
    from torch._inductor.async_compile import AsyncCompile

    if AsyncCompile.pool.cache_info().currsize:
        AsyncCompile.pool().shutdown(wait=True, cancel_futures=True)
        AsyncCompile.pool.cache_clear()
    _modules().cache.clear()
    codecache.CppCodeCache.cache.clear()
    codecache.CppPythonBindingsCodeCache.cache_clear()
    codecache.PyCodeCache.cache_clear()


@in_child
def _forget_in_child() -> None:
    """A child has none of the threads that build kernels, and would wait for what these have begun."""
    compiling = sys.modules.get("torch._inductor.async_compile")
    if compiling is not None and hasattr(compiling, "AsyncCompile"):
        compiling.AsyncCompile.pool.cache_clear()
        forget_unfinished_kernels()


#: What makes libraries quick to build: nothing for debuggers and profilers, no second check of shapes.
_LIBRARY: dict[str, Any] = {
    "cpp_wrapper": True,
    "size_asserts": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}

#: The part of the C++ that Inductor writes into each library and that is the same in all of them.
_MODEL = "torch::aot_inductor", "class AOTInductorModelBase<AOTInductorModel>;"


@while_compiling
def build_interface(folder: str) -> str:
    """Compile, in a folder, the object file that all libraries have in common."""
    from torch._inductor import codegen
    from torch._inductor.cpp_builder import CppBuilder, CppTorchDeviceOptions
    from torch._inductor.cpu_vec_isa import pick_vec_isa

    shared, source = Path(codegen.__file__).parent / "aoti_runtime" / "interface.cpp", Path(folder) / "interface.cpp"
    source.write_text(f'#include "{shared}"\nnamespace {_MODEL[0]} {{ template {_MODEL[1]} }}\n')
    with inductor_settings(**_LIBRARY):
        options = CppTorchDeviceOptions(
            vec_isa=pick_vec_isa(), device_type="cpu", aot_mode=True, compile_only=True, min_optimize=True
        )
        builder = CppBuilder("interface", [str(source)], options, folder)
        builder.build()
    return str(builder.get_target_file_path())


@while_compiling
def compile_library(graph: fx.GraphModule, inputs: Any, folder: str, name: str, interface: str, **kind: Any) -> str:
    """Compile a decomposed graph to a shared library in a folder, with the common part already compiled."""
    from torch._inductor import config
    from torch._inductor.codecache import CUDACodeCache
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
    from torch._inductor.virtualized import V

    def declare_interface(wrapper: Any) -> None:
        wrapper.header.splice(f"namespace {_MODEL[0]} {{ extern template {_MODEL[1]} }}")

    def check_nothing(wrapper: Any) -> None:
        wrapper.prefix.splice_aot("static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}")

    outputs = range(len(graph.graph.output_node().args[0]))  # type: ignore[arg-type]
    place = {"aot_inductor.output_path": f"{folder}/", "aot_inductor.model_name_for_generated_files": name}
    notes = {"aot_inductor.metadata": dict(config.aot_inductor.metadata)}  # where Inductor adds its own
    with (
        replaced(CppWrapperCpu, "_write_aoti_interface_header", declare_interface),
        replaced(CppWrapperCpu, "generate_input_output_runtime_checks", check_nothing),
        replaced(CUDACodeCache, "aot_kernels_o", [interface]),  # also for the CPU: what else is linked
        quiet_torch(),
        V.set_aot_compilation(True),
        inductor_settings(**_LIBRARY, **place, **notes),
    ):
        return str(compile_with_inductor(graph, inputs, outputs, cpp_wrapper=True, **kind).filename)


@while_compiling
def library_key(graph: fx.GraphModule, inputs: Any, **kind: Any) -> list[Any]:
    """What a library depends on: all that Inductor's own cache asks for, and the layouts that the outputs have.

    Inductor's part holds the ops with their arguments, what the inputs look like, Inductor's settings, torch's that
    change code (threads, determinism, the default dtype), the version of torch and its compilers, and the machine.
    """
    from torch._inductor.codecache import compiled_fx_graph_hash

    outputs: Any = graph.graph.output_node().args[0]
    with inductor_settings(**_LIBRARY):
        key, _ = compiled_fx_graph_hash(graph, inputs, kind, [])  # type: ignore[arg-type]
    return [key, [list(n.meta["val"].stride()) for n in outputs]]
