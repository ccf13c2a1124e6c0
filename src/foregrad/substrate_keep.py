"""The parts of torch that are needed to keep programs in files, in one place beside `substrate.py`.

Checked against torch 2.13.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._C._dynamo.guards import _torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
from torch.utils._pytree import TreeSpec, treespec_dumps, treespec_loads


def op_namespace(value: Any) -> str | None:
    """The name of a collection of ops such as `torch.ops.aten`; None for anything else."""
    return value.name if isinstance(value, torch._ops._OpNamespace) else None


def tree_spec_to_text(structure: TreeSpec) -> str | None:
    """The structure of a container as text; None if it has a container that torch cannot write down."""
    try:
        return treespec_dumps(structure)
    except (NotImplementedError, TypeError, ValueError):
        return None


def tree_spec_from_text(text: str) -> TreeSpec:
    return treespec_loads(text)


def load_extension(name: str, path: Path) -> ModuleType:
    """Load a Python module with kernels, which ask torch where the data of a tensor is."""
    os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(_torchinductor_pyobject_tensor_data_ptr)
    spec = importlib.util.spec_from_file_location(f"{path.stem}.{name}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
