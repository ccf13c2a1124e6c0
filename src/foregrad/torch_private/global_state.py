"""The private parts of torch of which the key of a program is made: global settings, ops that Python defines."""

from __future__ import annotations

import abc
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch._C._dynamo.guards import GlobalStateGuard
from torch._library import custom_ops, simple_registry
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket, _OpNamespace, _Ops
from torch.utils._config_module import ConfigModule
from torch.utils._pytree import SUPPORTED_NODES

__all__ = [
    "OP_HOMES",
    "TORCH_NAMESPACES",
    "CustomOpDef",
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "custom_op_names",
    "foreign_decompositions",
    "foreign_fakes",
    "global_hooks",
    "global_state",
    "is_global_hooks",
    "op_name",
    "python_parts_of_op",
    "pytree_functions",
    "registered_with",
    "replaced_kernels",
    "undisabled",
]

CustomOpDef = custom_ops.CustomOpDef

#: `torch.ops`, and what is between it and an op.
OP_HOMES = (_Ops, _OpNamespace)

#: Where torch has ops of its own.
TORCH_NAMESPACES: frozenset[str] = frozenset(
    {"aten", "c10d", "debug_mode_ops", "debugprims", "export", "higher_order", "inductor", "inductor_prims", "mkl"}
    | {"mkldnn", "mkldnn_prepacked", "onednn", "prim", "prims", "profiler", "quantization", "quantized", "rngprims"}
    | {"sparse", "static_runtime", "streams", "symm_mem", "_c10d_functional", "_c10d_functional_autograd", "_dtensor"}
    | {"_inductor_test", "_native", "_quantized", "_test"}
)


def global_state() -> dict[str, Any]:
    """What torch is set to do, beyond any one tensor: modes, default types, flags."""
    backends, einsum = torch.backends, torch.backends.opt_einsum
    return {
        **json.loads(str(GlobalStateGuard().__getstate__())),
        "inference_mode": torch.is_inference_mode_enabled(),
        "default_device": str(torch.get_default_device().type),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "flash_attention": backends.cuda.flash_sdp_enabled(),
        "memory_efficient_attention": backends.cuda.mem_efficient_sdp_enabled(),
        "math_attention": backends.cuda.math_sdp_enabled(),
        "mkldnn": backends.mkldnn.is_available() and backends.mkldnn.enabled,
        "einsum": f"{einsum.enabled} {einsum.strategy}",
        "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        "accelerator": str(torch.accelerator.current_accelerator() or "none"),
        **_changed_settings(),
    }


def _changed_settings() -> dict[str, Any]:
    """Settings of torch's compilers that are not as torch comes: `torch._inductor.config.max_autotune`. One that was
    set and put back counts as it is."""
    homes = {name: home for name, home in list(sys.modules.items()) if isinstance(home, ConfigModule)}
    changed = [(home, key) for _, home in sorted(homes.items()) for key in home._config if not home._is_default(key)]
    values = {f"{home.__name__}.{key}": (getattr(home, key), home._config[key].default) for home, key in changed}
    return {n: str(value) for n, (value, default) in values.items() if value != default and n not in _WRITTEN_BY_TORCH}


#: Where AOTInductor notes down, in its settings, for what machine it has compiled.
_WRITTEN_BY_TORCH = frozenset({"torch._inductor.config.aot_inductor.metadata"})


def global_hooks() -> dict[str, list[Any]]:
    """Hooks that run at every module or optimizer, by their kind and in their order; and which of them are called in a
    special way. The numbers by which torch knows them differ from process to process."""
    found = {name: value for home in _HOMES_OF_HOOKS for name, value in vars(sys.modules[home]).items()}
    tables = {name: hooks for name, hooks in found.items() if name.startswith(_GLOBAL) and isinstance(hooks, dict)}
    flags = {name for name, hooks in tables.items() if all(value is True for value in hooks.values())}
    places = {n: f"{name} {i}" for name in tables.keys() - flags for i, n in enumerate(tables[name])}
    return {
        name: sorted(places.get(number, "none") for number in hooks) if name in flags else list(hooks.values())
        for name, hooks in tables.items()
        if hooks
    }


def is_global_hooks(home: str, name: str) -> bool:
    """Whether a variable of a module holds hooks of all modules or optimizers."""
    return home in _HOMES_OF_HOOKS and name.startswith(_GLOBAL)


_HOMES_OF_HOOKS, _GLOBAL = ("torch.nn.modules.module", "torch.optim.optimizer"), "_global_"


def op_name(op: Any) -> str:
    """The name of an op without its overload: `aten::mul`."""
    if isinstance(op, CustomOpDef):
        return op._qualname
    return op._qualified_op_name if isinstance(op, OpOverloadPacket) else op._schema.name


def custom_op_names() -> list[str]:
    """Every op that Python has defined, of users and of libraries."""
    made = (name.partition(".")[0] for name in (*custom_ops.OPDEFS, *torch.library._defs))
    return sorted({name for name in made if name.partition("::")[0] not in TORCH_NAMESPACES})


def python_parts_of_op(name: str) -> dict[str, Any] | None:
    """The functions that make up an op of Python's; None if its kernels are known to C++ alone."""
    found = custom_ops.OPDEFS.get(name)
    if found is None:
        return None
    entry = simple_registry.singleton.get(f"{name}.default") or simple_registry.singleton.get(name)
    return {
        "schema": found._schema,
        "implementation": found._init_fn,
        "kernels": dict(found._backend_fns),
        "fake kernel": found._abstract_fn,
        "fake kernels": [] if entry is None else [kernel.func for kernel in entry.fake_impl.kernels],
        "autograd formula": found._backward_fn,
        "autograd context": found._setup_context_fn,
        "batching rule": found._vmap_fn,
        "autocast": dict(found._autocast_dtype),
        "dispatch rules": list(found._torch_dispatch_fns.values()),
        "disabled kernels": sorted(found._disabled_kernel),
        "effect": "" if (effect := simple_registry.singleton.find(name).effect.effect) is None else effect.value,
    }


def replaced_kernels() -> list[str]:
    """Kernels of torch's own ops that Python has registered, as no part of torch does: `aten/relu/CPU`."""
    vmap = sys.modules.get("torch._functorch.predispatch")  # registers rules of its own when it is first used
    rules = getattr(vmap, "VMAP_DECOMPOSITIONS_LIB", None)
    own: set[str] = getattr(rules, "_op_impls", set())
    found = [key for key in torch.library._impls if key.startswith("aten/") and key not in own]
    return sorted(key for key in found if not key.endswith(_OF_TORCH))


_OF_TORCH = ("/Meta", "/CUDA", "/MPS")


def foreign_fakes(is_foreign: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """Fake kernels that someone has given to torch's own ops, by the name of the op."""
    entries = simple_registry.singleton._data.items()
    fakes = [(name, kernel.func) for name, entry in entries for kernel in entry.fake_impl.kernels]
    return [(name, one) for name, one in fakes if name.partition("::")[0] in TORCH_NAMESPACES and is_foreign(one)]


def pytree_functions(cls: type) -> tuple[Any, ...]:
    """How values of a class are taken apart and put together again, if someone has said so."""
    found = SUPPORTED_NODES.get(cls)
    return () if found is None else (found.flatten_fn, found.unflatten_fn)


def foreign_decompositions(is_foreign: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """Decompositions that someone has put into torch's tables, by the name of the op."""
    tables = [getattr(sys.modules.get(name), "decompositions", {}) for name in ("torch._inductor.decomposition",)]
    tables += getattr(sys.modules.get("torch._decomp"), "global_decomposition_table", {}).values()
    return sorted(
        {str(op): function for table in tables for op, function in table.items() if is_foreign(function)}.items()
    )


def registered_with(cls: type) -> list[type]:
    """Classes that were registered with an abstract class, and are no subclasses of it."""
    if "_abc_impl" in vars(cls):
        found = (one() for one in abc._get_dump(cls)[0])  # type: ignore[attr-defined]
        return [one for one in found if one is not None]
    return []


def undisabled(function: Any) -> Any:
    """A function without what keeps torch's compiler out of it, which torch puts around some of its own when that is
    loaded."""
    held = vars(function)
    if function.__globals__.get("__name__") == "torch._compile":
        return held.get("__wrapped__", function)
    return held.get("_torchdynamo_orig_callable", function)
