"""Serialization: op schemas, tree specs, extensions and libraries."""

from __future__ import annotations

import importlib.util
import json
import re
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, treespec_dumps, treespec_loads

_WORD = re.compile(r"[A-Za-z_.][A-Za-z0-9_.]*")


def op_namespace(value: Any) -> str | None:
    """The name of a collection of ops such as `torch.ops.aten`; None for anything else."""
    return value.name if isinstance(value, torch._ops._OpNamespace) else None


def schema_types(op: Any) -> frozenset[str]:
    """The types of what an op takes and returns, without "list of" and "or none": {"Tensor", "int"}."""
    values = (*op._schema.arguments, *op._schema.returns)
    return frozenset(word for one in values for word in _WORD.findall(str(one.type))) - {"List", "Optional"}


def tree_spec_to_text(structure: TreeSpec, parts: list[Any]) -> str:
    """The structure of a container as text, in torch's own form. Classes that torch cannot write down, and what belongs
    to them, go to `parts`, and stand in the text by their numbers there."""
    return json.dumps([_PROTOCOL, _node_to_json(structure, parts)])


def _node_to_json(node: TreeSpec, parts: list[Any]) -> dict[str, Any]:
    if node.is_leaf():
        return {"type": None, "context": None, "children_spec": []}
    children = [_node_to_json(child, parts) for child in node.children()]
    name = f"torch.return_types.{node.type.__name__}"
    if _RETURN_TYPES.get(name) is node.type:
        return {"type": name, "context": None, "children_spec": children}
    try:
        alone = TreeSpec(node.type, node.context, [_LEAF] * len(children))
        return {**json.loads(treespec_dumps(alone))[1], "children_spec": children}
    except (NotImplementedError, TypeError, ValueError):
        if node.type is namedtuple:
            parts.append(node.context)
            return {"type": _NAMED, "context": len(parts) - 1, "children_spec": children}
        parts += [node.type, node.context]
        return {"type": _ELSEWHERE, "context": len(parts) - 2, "children_spec": children}


def tree_spec_from_text(text: str, parts: Sequence[Any]) -> TreeSpec:
    protocol, outermost = json.loads(text)
    if protocol != _PROTOCOL:
        raise ValueError(f"structures are written by protocol {protocol}")
    return _node_from_json(outermost, parts)


def _node_from_json(data: Any, parts: Sequence[Any]) -> TreeSpec:
    name, context = data["type"], data["context"]
    children = [_node_from_json(child, parts) for child in data["children_spec"]]
    if name is None:
        return _LEAF
    if name == _NAMED:
        return TreeSpec(namedtuple, parts[context], children)
    if name == _ELSEWHERE:
        return TreeSpec(parts[context], parts[context + 1], children)
    if name in _RETURN_TYPES:
        return _return_type(name, context, children)
    leaves: list[Any] = [{"type": None, "context": None, "children_spec": []}] * len(children)
    alone = treespec_loads(json.dumps([_PROTOCOL, {**data, "children_spec": leaves}]))
    return TreeSpec(alone.type, alone.context, children)


def _return_type(name: str, context: Any, children: list[TreeSpec]) -> TreeSpec:
    """One of torch's own named tuples."""
    kind: Any = _RETURN_TYPES[name]
    if context is not None or len(children) != kind.n_sequence_fields:
        raise LookupError(f"{name} of {len(children)} parts")
    return TreeSpec(kind, None, children)


#: The form in which torch 2.13 writes structures down, and what stands there for classes that it does not know.
_PROTOCOL, _NAMED, _ELSEWHERE = 1, "foregrad.namedtuple", "foregrad.class"
_LEAF = tree_flatten(None)[1]

#: What `torch.sort`, `torch.max` and others return: tuples with names, made in C by their number of fields.
_RETURN_TYPES: dict[str, type] = {
    f"torch.return_types.{name}": kind
    for name, kind in vars(torch.return_types).items()
    if isinstance(kind, type) and issubclass(kind, tuple) and hasattr(kind, "n_sequence_fields")
}

#: Containers whose structure may come from anybody, by the names under which torch writes them down.
_CONTAINERS: dict[str, type] = {
    "builtins.tuple": tuple,
    "builtins.list": list,
    "builtins.dict": dict,
    "collections.OrderedDict": OrderedDict,
    "collections.deque": deque,
}


def plain_tree_spec_from_text(text: str) -> TreeSpec | str:
    """The structure of plain containers of Python's and torch's; else the name of the first that is none. Nothing is
    imported or called by a name in the text."""
    protocol, outermost = json.loads(text)
    try:
        return _plain_tree_spec(outermost) if protocol == _PROTOCOL else f"protocol {protocol}"
    except LookupError as error:
        return str(error.args[0])


def _plain_tree_spec(data: Any) -> TreeSpec:
    children = [_plain_tree_spec(child) for child in data["children_spec"]]
    if data["type"] is None:
        return _LEAF
    if data["type"] in _RETURN_TYPES:
        return _return_type(data["type"], data["context"], children)
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
    """Load a Python module with kernels. It is no module that others can import."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library_runner(path: str) -> Callable[[list[torch.Tensor]], list[torch.Tensor]]:
    """Load a library that `compile_library` made."""
    return torch._C._aoti.AOTIModelContainerRunnerCpu(path, 1).run
