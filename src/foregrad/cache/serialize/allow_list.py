"""Allow list: what an unsigned file may name.

Closed lists, and nothing is imported by a name in the file: ops of ATen whose arguments are tensors and plain values,
torch's own Python functions for these ops, and the functions and types that generated code uses around them.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from foregrad.core.errors import UntrustedArtifact
from foregrad.torch_private.ops import FUNCTION_HOMES
from foregrad.torch_private.serialization import schema_types

#: Types of arguments that an op of such a file may take. There is no type among them for memory by its address, files,
#: streams or objects of classes.
_TYPES = frozenset(
    ("Tensor", "bool", "int", "float", "complex", "number", "str", "Device", "Generator", "ScalarType", "Layout",
     "MemoryFormat", "Dimname", "SymInt")
)  # fmt: skip

#: Functions, types and constants by the names under which files have them: where each is, and whether it is called.
_FUNCTIONS = frozenset(
    (
        "builtins.bool", "builtins.bytes", "builtins.complex", "builtins.dict", "builtins.float", "builtins.int",
        "builtins.list", "builtins.slice", "builtins.str", "builtins.tuple",
        "foregrad.functionalize.redraw.rng_state",
        "foregrad.record.symbols.scalar_state.to_float32",
        "foregrad.runtime.dead_ends.dead_ends",
        "foregrad.runtime.epilogue.over_memory",
        "foregrad.runtime.failures.random_state",
        "foregrad.runtime.sentinels.MISS",
        "foregrad.runtime.guards.torch_guards.attention_kernels",
        "foregrad.runtime.backward_conditions.is_more_than_memory",
        "foregrad.torch_private.dispatch.BELOW_AUTOGRAD",
        "foregrad.torch_private.dispatch.autocast_disabled",
        "foregrad.torch_private.autograd.has_hooks",
        "foregrad.torch_private.autograd.set_version",
        "foregrad.torch_private.autograd.set_versions",
        "foregrad.torch_private.autograd.version_of",
        "foregrad.core.history.gets_no_gradient",
        "foregrad.core.history.grad_of",
        "foregrad.core.history.history_of",
        "foregrad.core.history.keeps_gradient",
        "foregrad.core.history.leads_nowhere",
        "foregrad.core.history.shares_version",
        "foregrad.core.shared_memory.address",
        "operator.__getitem__",
        "operator.is_",
        "torch.Size",
        "torch.Tensor",
        "torch.Tensor.item",
        "torch._C._ExcludeDispatchKeyGuard",
        "torch.autograd.backward",
        "torch.autograd.graph.get_gradient_edge",
        "torch.autograd.graph.increment_version",
        "torch.is_grad_enabled",
        "torch.is_inference_mode_enabled",
        "torch.nn.parameter.Parameter",
        "torch.set_grad_enabled",
        "torch.utils._pytree.tree_flatten",
        "torch.utils._pytree.tree_unflatten",
    )
)  # fmt: skip

#: Autograd functions whose `apply` generated code calls.
_APPLIED = frozenset(
    (
        "foregrad.runtime.epilogue.FunctionView",
        "foregrad.runtime.epilogue.Written",
        "foregrad.core.attach_history.Attached",
    )
)

#: Errors that a backward raises where eager does.
_ERRORS = frozenset(("builtins.RuntimeError", "builtins.ValueError", "foregrad.BackwardError"))

#: What stands before the name of an op in torch's own functions for it.
_HOMES = {
    "torch._C._VariableFunctions": 0,
    "torch._C._nn": 1,
    "torch._C._linalg": 2,
    "torch._C._special": 3,
    "torch._C._fft": 4,
    "torch.Tensor": 5,
}

_SHORT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)


def allowed_op(name: Any) -> Any:
    """The op of a name such as `aten::add.Tensor`."""
    namespace, _, rest = str(name).partition("::")
    packet, _, overload = rest.partition(".")
    if namespace == "aten" and packet in _ops() and _SHORT.fullmatch(overload or "default"):
        op = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if op is not None and schema_types(op) <= _TYPES:
            return op
    raise refused(f"the op {name!r:.80}")


def allowed_function(name: Any) -> Any:
    """The function, type or constant of a name."""
    home, _, last = str(name).rpartition(".")
    if name in _FUNCTIONS:
        return _found(name)
    if home in _HOMES and last in _ops() and (found := getattr(FUNCTION_HOMES[_HOMES[home]], last, None)) is not None:
        return found
    raise refused(f"{name!r:.80}")


def allowed_method(owner: Any, name: Any) -> Any:
    """A method of a class, by the names of both: `apply` of some autograd functions."""
    if owner in _APPLIED and name == "apply":
        return _found(owner).apply
    raise refused(f"the method {name!r:.80} of {owner!r:.80}")


def allowed_error(name: Any) -> Any:
    """The class of an error."""
    if name in _ERRORS:
        return _found(name)
    raise refused(f"the error {name!r:.80}")


def refused(what: str) -> UntrustedArtifact:
    """The error for something that only a signed file may hold."""
    return UntrustedArtifact(
        f"it needs {what}, which data alone cannot express. Nothing of it was run.\n"
        "If you know who made the file, add their key: foregrad trust add."
    )


def _found(name: str) -> Any:
    """What one of our own names stands for."""
    module, _, last = name.rpartition(".")
    holder = torch.Tensor if module == "torch.Tensor" else import_module(module)
    return getattr(holder, last)


@cache
def _ops() -> frozenset[str]:
    lines = Path(__file__).with_name("allowed_ops.txt").read_text().splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
