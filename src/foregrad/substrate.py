"""Every private name of torch that foregrad uses, in one place: a new torch release is this file's work.

Checked against torch 2.13.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from torch import fx
from torch._C import DisableTorchFunction as no_function_modes
from torch._C import DispatchKey, DispatchKeySet
from torch._C import _current_autograd_node as current_autograd_node
from torch._C import _ExcludeDispatchKeyGuard as exclude_keys
from torch._C import _len_torch_function_stack as num_function_modes
from torch._C._autograd import _unsafe_set_version_counter as _set_version_counters
from torch._C._dynamo.guards import GlobalStateGuard, TensorGuards
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.autograd.function import BackwardCFunction
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass,
)
from torch.utils._python_dispatch import _disable_current_modes as no_dispatch_modes
from torch.utils._pytree import (
    TreeSpec,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
    tree_map_only,
    tree_unflatten,
)

__all__ = [
    "BELOW_AUTOGRAD",
    "FUNCTION_HOMES",
    "BackwardCFunction",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "GlobalStateGuard",
    "HigherOrderOperator",
    "OpOverload",
    "TensorGuards",
    "TorchDispatchMode",
    "TreeSpec",
    "UnsupportedOperatorException",
    "autocast_disabled",
    "autocast_state",
    "build_interface",
    "checkpoint_region",
    "compile_library",
    "compile_with_inductor",
    "current_autograd_node",
    "exclude_keys",
    "fake_mode",
    "inductor_decompositions",
    "inductor_draws_like_eager",
    "inductor_error",
    "inductor_settings",
    "is_functorch_wrapped_tensor",
    "is_traceable_wrapper_subclass",
    "keep_precompiled_headers",
    "lazy_graph_module",
    "library_runner",
    "neg_view",
    "next_sequence_number",
    "no_dispatch_modes",
    "no_function_modes",
    "no_saved_tensor_hooks",
    "num_function_modes",
    "probe_instruction_sets",
    "quiet_torch",
    "run_engine",
    "set_version",
    "trace_decomposed",
    "tree_flatten",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map_only",
    "tree_unflatten",
    "under_foreign_control",
    "uninitialized_memory_untouched",
    "use_compiler",
    "version_of",
]

#: Dispatch keys that code of a compiled program skips: it is below autograd, and its views are no autograd views.
BELOW_AUTOGRAD = DispatchKeySet(DispatchKey.ADInplaceOrView) | DispatchKeySet(DispatchKey.AutogradFunctionality)

#: Where torch keeps its Python functions for ops.
FUNCTION_HOMES: tuple[Any, ...] = (
    torch._C._VariableFunctions,
    torch._C._nn,
    torch._C._linalg,  # type: ignore[attr-defined]
    torch._C._special,  # type: ignore[attr-defined]
    torch._C._fft,  # type: ignore[attr-defined]
    torch.Tensor,
)

neg_view = torch._neg_view

next_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]

_transforms_active = torch._C._are_functorch_transforms_active
_num_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_compiling = torch.compiler.is_compiling
_forward_ad = torch.autograd.forward_ad


def under_foreign_control() -> bool:
    """Whether someone else is watching or transforming the ops right now: then the original function must run."""
    return bool(
        _is_compiling()
        or _transforms_active()
        or _num_dispatch_modes()
        or num_function_modes()
        or _forward_ad._current_level >= 0
    )


def lazy_graph_module(constants: dict[str, torch.Tensor], graph: fx.Graph, name: str) -> fx.GraphModule:
    """A graph module whose Python code is written when it is first run or printed: most are only looked at."""
    return _LazyGraphModule(constants, graph, class_name=name)


def run_engine(
    sources: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], slots: Sequence[Any], *, create_graph: bool
) -> tuple[torch.Tensor | None, ...]:
    """`torch.autograd.grad`, keeping the graph, past torch function modes: these stay on for hooks and Functions."""
    return torch.autograd.graph._engine_run_backward(
        tuple(sources), tuple(tangents), True, create_graph, tuple(slots), allow_unreachable=True, accumulate_grad=False
    )


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor, if it has one: inference tensors have none."""
    if not tensor.is_inference():
        _set_version_counters((tensor,), (version,))


def version_of(tensor: torch.Tensor) -> int:
    """The version counter; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


@contextmanager
def no_saved_tensor_hooks() -> Iterator[None]:
    """Put aside the saved-tensor hooks that are on around the call."""
    hooks = []
    while (pair := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        hooks.append(pair)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pair in reversed(hooks):
            torch._C._autograd._push_saved_tensors_default_hooks(*pair)


def autocast_state(devices: Sequence[str]) -> tuple[tuple[str, torch.dtype], ...]:
    """The devices among these for which autocast is on, with its dtype."""
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


def autocast_disabled() -> Any:
    """A context in which no op is autocast: a program already holds its casts."""
    return torch._C._DisableAutocast()


def checkpoint_region() -> tuple[Any, Any]:
    """The innermost `torch.utils.checkpoint` region that is running, and the frame that recomputes it if one does.

    A region is known by the generator state that it keeps; one that keeps none is no region, and draws anew.
    """
    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_filename == torch.utils.checkpoint.__file__:
            if code.co_name == "recompute_fn":
                return frame.f_locals.get("fwd_cpu_state"), frame
            generator = frame.f_locals.get("gen") if code.co_name == "checkpoint" else None
            if generator is not None and generator.gi_frame is not None:
                return generator.gi_frame.f_locals.get("fwd_cpu_state"), None
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


_quiet = threading.local()


class _NotWhenQuiet(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return not getattr(_quiet, "on", False)


for _name in ("torch._subclasses.fake_tensor", "torch._inductor.ir"):
    logging.getLogger(_name).addFilter(_NotWhenQuiet())


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Keep torch from logging what is handled: an error in fake tensors, an op that a library calls by its name."""
    _quiet.on = True
    try:
        yield
    finally:
        _quiet.on = False


# -- Inductor: imported where it is used, since it takes seconds -------------------------------------------------


def fake_mode() -> FakeTensorMode:
    """A mode for fake tensors of fixed shapes, with what Inductor's own cache asks for."""
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    return FakeTensorMode(shape_env=ShapeEnv(), static_shapes=True)


def trace_decomposed(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], decompositions: dict[Any, Callable[..., Any]]
) -> fx.GraphModule:
    """The graph of a function on fake tensors, each op replaced as the table says."""
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        return make_fx(function, decomposition_table=decompositions)(*inputs)


@contextmanager
def inductor_settings(**settings: Any) -> Iterator[None]:
    """Inductor's configuration, changed for the time of a block."""
    from torch._inductor import config

    with config.patch(settings):
        yield


@contextmanager
def inductor_draws_like_eager() -> Iterator[None]:
    """Let Inductor draw random numbers by the kernels that eager uses, in the order of the graph.

    Its own form of `bernoulli` writes to a buffer that fused code may already have read.
    """
    from torch._inductor.lowering import fallback_handler, lowerings

    func = torch.ops.aten.bernoulli.p
    before = lowerings[func]
    lowerings[func] = fallback_handler(func, add_to_fallback_set=False)
    try:
        with inductor_settings(fallback_random=True, reorder_for_peak_memory=False):
            yield
    finally:
        lowerings[func] = before


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """What Inductor wants decomposed, under its present settings."""
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def compile_with_inductor(
    graph: fx.GraphModule, inputs: Sequence[torch.Tensor], fixed: Sequence[int], **kind: Any
) -> Any:
    """Compile a decomposed graph; the layouts of the outputs at `fixed` are kept. Takes a list, and empties it."""
    from torch._inductor.compile_fx import compile_fx_inner

    graph.graph.output_node().meta["user_visible_output_idxs"] = list(fixed)
    return compile_fx_inner(graph, inputs, **kind)


def inductor_error() -> type[Exception]:
    """What Inductor raises when it cannot compile a graph."""
    from torch._inductor.exc import InductorError

    return InductorError


def use_compiler(name: str) -> None:
    """Let Inductor call this compiler, in place of the one that it would look for."""
    from torch._inductor import config

    config.cpp.cxx = (None, name)


def probe_instruction_sets(recall: Callable[[Any, Callable[[], bool]], bool]) -> list[str]:
    """The vector instructions that Inductor may use, best first; `recall` may know what a trial build would tell."""
    from torch._inductor.cpu_vec_isa import VecISA, valid_vec_isa_list

    def check(isa: Any, code: str) -> bool:
        return recall(["builds", str(isa), isa.build_arch_flags(), code], lambda: build(isa, code))

    build = VecISA.check_build
    with patch.object(VecISA, "check_build", check):
        return [str(isa) for isa in valid_vec_isa_list()]


def keep_precompiled_headers(folder: Path, recall: Callable[[Any, Callable[[], str]], str]) -> None:
    """Keep Inductor's precompiled headers in a folder that lasts; `recall` may know the one that is wanted."""
    from torch._inductor import codecache

    def precompile(header: str, command: str, **options: Any) -> str:
        question = [header, command, sorted((k, str(v)) for k, v in options.items())]
        return recall(question, lambda: make(header, command, **options))

    make = codecache._precompile_header
    codecache._HEADER_DIR, codecache._HEADER_LOCK_DIR = str(folder), str(folder / "locks")
    codecache._precompile_header = precompile  # type: ignore[assignment]


#: What makes libraries quick to build: nothing for debuggers and profilers, no second check of shapes.
_LIBRARY: dict[str, Any] = {
    "cpp_wrapper": True,
    "size_asserts": False,
    "aot_inductor.enable_line_tables": False,
    "aot_inductor.enable_frame_pointer": False,
}

#: The part of the C++ that Inductor writes into each library and that is the same in all of them.
_MODEL = "torch::aot_inductor", "class AOTInductorModelBase<AOTInductorModel>;"


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


def compile_library(graph: fx.GraphModule, inputs: Any, folder: str, name: str, interface: str, **kind: Any) -> str:
    """Compile a decomposed graph to a shared library in a folder, with the common part already compiled."""
    from torch._inductor.codecache import CUDACodeCache
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
    from torch._inductor.virtualized import V

    def declare_interface(wrapper: Any) -> None:
        wrapper.header.splice(f"namespace {_MODEL[0]} {{ extern template {_MODEL[1]} }}")

    def check_nothing(wrapper: Any) -> None:
        wrapper.prefix.splice_aot("static void __check_inputs_outputs(AtenTensorHandle*, AtenTensorHandle*) {}")

    outputs = range(len(graph.graph.output_node().args[0]))  # type: ignore[arg-type]
    place = {"aot_inductor.output_path": f"{folder}/", "aot_inductor.model_name_for_generated_files": name}
    with (
        patch.object(CppWrapperCpu, "_write_aoti_interface_header", declare_interface),
        patch.object(CppWrapperCpu, "generate_input_output_runtime_checks", check_nothing),
        patch.object(CUDACodeCache, "aot_kernels_o", [interface]),  # also for the CPU: what else is linked
        quiet_torch(),
        V.set_aot_compilation(True),
        inductor_settings(**_LIBRARY, **place),
    ):
        return str(compile_with_inductor(graph, inputs, outputs, cpp_wrapper=True, **kind).filename)


def library_runner(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `compile_library` made."""
    return torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1).run


@contextmanager
def uninitialized_memory_untouched() -> Iterator[None]:
    """Make `empty` leave memory alone even in deterministic mode, where torch would fill it."""
    before = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = before  # type: ignore[attr-defined]
