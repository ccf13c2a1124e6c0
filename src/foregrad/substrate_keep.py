"""The parts of torch that are needed to keep programs in files, in one place beside `substrate.py`.

Checked against torch 2.13.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections import OrderedDict, deque
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._C._dynamo.guards import _torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
from torch.utils._pytree import TreeSpec, tree_flatten, treespec_dumps, treespec_loads

_WORD = re.compile(r"[A-Za-z_.][A-Za-z0-9_.]*")


def op_namespace(value: Any) -> str | None:
    """The name of a collection of ops such as `torch.ops.aten`; None for anything else."""
    return value.name if isinstance(value, torch._ops._OpNamespace) else None


def schema_types(op: Any) -> frozenset[str]:
    """The types of what an op takes and returns, without "list of" and "or none": {"Tensor", "int"}."""
    values = (*op._schema.arguments, *op._schema.returns)
    return frozenset(word for one in values for word in _WORD.findall(str(one.type))) - {"List", "Optional"}


def tree_spec_to_text(structure: TreeSpec) -> str | None:
    """The structure of a container as text; None if it has a container that torch cannot write down."""
    try:
        return treespec_dumps(structure)
    except (NotImplementedError, TypeError, ValueError):
        return None


def tree_spec_from_text(text: str) -> TreeSpec:
    return treespec_loads(text)


#: Containers whose structure may come from anybody, by the names under which torch writes them down.
_CONTAINERS: dict[str, type] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.deque": deque,
}


def plain_tree_spec_from_text(text: str) -> TreeSpec | str:
    """The structure of plain containers of Python's; else the name of the first that is none. Nothing is imported or
    called by a name in the text."""
    protocol, outermost = json.loads(text)
    try:
        return _plain_tree_spec(outermost) if protocol == 1 else f"protocol {protocol}"
    except LookupError as error:
        return str(error.args[0])


def _plain_tree_spec(data: Any) -> TreeSpec:
    children = [_plain_tree_spec(child) for child in data["children_spec"]]
    if data["type"] is None:
        return tree_flatten(None)[1]
    kind = _CONTAINERS[data["type"]]
    context = None if data["context"] is None else json.loads(data["context"])
    if issubclass(kind, dict):
        is_fine = type(context) is list and all(type(key) in (str, int, float, bool) for key in context)
    else:
        is_fine = context is None or (kind is deque and type(context) is int)
    if not is_fine:
        raise LookupError(f"{data['type']} of something else than plain keys")
    return TreeSpec(kind, context, children)


def load_extension(name: str, path: Path) -> ModuleType:
    """Load a Python module with kernels, which ask torch where the data of a tensor is."""
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(_torchinductor_pyobject_tensor_data_ptr)
    spec = importlib.util.spec_from_file_location(f"{path.stem}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
