"""Ops of the user's: the Python code of kernels, fake kernels, autograd formulas and batching rules."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from foregrad.cache.key.libraries import library_of
from foregrad.cache.key.walk import KeyWalk, Shower
from foregrad.torch_private.global_state import (
    OP_HOMES,
    TORCH_NAMESPACES,
    CustomOpDef,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    custom_op_names,
    op_name,
    python_parts_of_op,
)
from foregrad.torch_private.ops import overload_name


def is_op_home(value: Any) -> bool:
    """Whether this is `torch.ops`, or a namespace in it."""
    return isinstance(value, OP_HOMES)


def show_ops(walk: KeyWalk, home: ModuleType, attributes: list[str]) -> str:
    """`torch.ops.mylib.scale`; where the code does not say which op, all that there are."""
    path = [*home.__name__.split(".")[2:], *attributes]
    if path and path[0] in TORCH_NAMESPACES:
        return f"<torch op {'.'.join(path)}>"
    names = [name for name in custom_op_names() if not path or name.startswith(f"{path[0]}::")]
    if len(path) > 1 and not path[1].startswith("__"):
        names = [f"{path[0]}::{path[1]}"]
    return " ".join([show_op(walk, name) for name in names]) or f"<ops {'.'.join(path)}>"


def show_op(walk: KeyWalk, name: str) -> str:
    """An op by its name; the code of one that Python made is an ingredient for each part."""
    namespace = name.partition("::")[0]
    if namespace in TORCH_NAMESPACES:
        return f"<torch op {name}>"
    library = library_of(namespace)
    parts = python_parts_of_op(name)
    if parts is None and library is not None:
        walk.libraries[library.name] = library.identity
    elif parts is None:
        walk.doubt(f"the kernels of {name} were registered where the key cannot look: use torch.library.custom_op")
    _, is_new = walk.name("op", name) if parts is None else walk.name(f"op {name}", parts["implementation"])
    for part, value in (parts or {}).items() if is_new else ():
        if value:
            walk.add(f"op {name}: {part}", walk.show(value, f"the {part} of {name}"))
    return f"<op {name}>"


def _show(walk: KeyWalk, value: Any, place: str) -> str:
    overload = f".{overload_name(value)}" if isinstance(value, OpOverload) else ""
    return show_op(walk, op_name(value)) + overload


OPS: dict[type, Shower] = {
    CustomOpDef: _show,
    OpOverload: _show,
    OpOverloadPacket: _show,
    HigherOrderOperator: lambda walk, value, place: f"<torch op {value.name()}>",
}
