"""Describe: a generated function with everything that it calls, as JSON and blobs.

Every object stands in a table after those that it is made of, so that `restore` can make any of them. Compiled code is
kept as blobs, named by their content.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path
from types import BuiltinFunctionType, CellType, MethodType, ModuleType
from typing import Any

import torch
from torch import fx

from foregrad.backends.guarded_code import Guarded
from foregrad.backends.library import Library
from foregrad.cache.serialize.callable_parts import parts_of
from foregrad.cache.serialize.graphs import graph_to_json
from foregrad.cache.serialize.known_names import ROOTS, name_of
from foregrad.cache.serialize.plain_values import to_json
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.core.errors import CannotKeep
from foregrad.core.generated import Generated, Line, generated_of
from foregrad.core.size import Size
from foregrad.core.spec import Spec
from foregrad.runtime.compiled_stage import CompiledStage
from foregrad.runtime.guards.reach import Lost
from foregrad.runtime.partial_backward import KeptStage
from foregrad.runtime.wrapper_tensors import SameWrapper
from foregrad.torch_private.ops import OpOverload, overload_name, schema_of
from foregrad.torch_private.pytree import TreeSpec
from foregrad.torch_private.serialization import op_namespace, tree_spec_to_text


class Describer:
    """Describes objects; `table` and `blobs` are what was described so far."""

    def __init__(self, places: StatePlaces, *, needs_code: bool) -> None:
        self.places = places
        self.needs_code = needs_code  # whether it may need code of the user's, who then has it at hand
        self.table: list[Any] = []
        self.blobs: dict[str, bytes] = {}
        self._at: dict[int, int] = {}
        self._alive: list[Any] = []

    def __call__(self, value: Any) -> Any:
        """A value as JSON. What is kept at a place is read there, whatever it is."""
        return self._object(value) if self.places.of(value) is not None else to_json(value, self._object)

    def _object(self, value: Any) -> Any:
        if id(value) not in self._at:
            description = self._describe(value)
            self.table.append(description)
            self._alive.append(value)
            self._at[id(value)] = len(self.table) - 1
        return {"is": "object", "at": self._at[id(value)]}

    def _describe(self, value: Any) -> Any:
        place = self.places.of(value)
        if place is not None:
            return place
        generated = generated_of(value)
        if generated is not None:
            return self._generated(generated)
        parts = parts_of(value)
        if parts is not None:
            if isinstance(value, Guarded):  # its graph is behind a function, since it is rarely looked at
                parts["graph"] = value.graph()
            described = {name: self(part) for name, part in parts.items()}
            return {"is": "made", "kind": type(value).__qualname__, "parts": described}
        for what, describe in self._ways():
            if isinstance(value, what):
                return describe(value)
        return self._known(value)

    def _ways(self) -> list[tuple[Any, Callable[[Any], Any]]]:
        return [
            (OpOverload, lambda op: {"is": "op", "name": f"{schema_of(op).name}.{overload_name(op)}"}),
            (Library, self._library),
            ((CompiledStage, KeptStage), self._stage),
            (fx.GraphModule, lambda graph: graph_to_json(graph, self)),
            (TreeSpec, self._structure),
            (torch.Tensor, self._tensor),
            (BuiltinFunctionType, self._builtin),
            (MethodType, lambda method: {"is": "method", "of": self(method.__self__), "name": method.__name__}),
            (Exception, self._error),
            (Size, _size),
        ]

    def _generated(self, generated: Generated) -> Any:
        names = {
            name: {"is": "recipe", "of": self(generated.recipes[name])} if name in generated.recipes else self(value)
            for name, value in generated.namespace.items()
        }
        bytecode = self._blob(generated.compiled(), "bytecode")
        return {
            "is": "function",
            "name": generated.name,
            "lines": list(_pieces(generated.lines)),
            "bytecode": bytecode,
            "names": names,
        }

    def _library(self, library: Library) -> Any:
        return {
            "is": "library",
            "code": self._file(library.library),
            "ops": self._file(library.ops) if library.ops else None,
            "places": self(library.places),
            "constants": self(library.constants),
        }

    def _stage(self, stage: CompiledStage | KeptStage) -> Any:
        backwards, tangents = self(stage.kept_backwards), self(stage.tangents)
        return {"is": "stage", "name": stage.name, "backwards": backwards, "tangents": tangents}

    def _structure(self, structure: TreeSpec) -> Any:
        parts: list[Any] = []
        text = tree_spec_to_text(structure, parts)
        return {"is": "structure", "text": text, "parts": [self._part_of_structure(part) for part in parts]}

    def _part_of_structure(self, part: Any) -> Any:
        """A class of which a result is, or what pytree keeps with it: other processes find it if they have its code."""
        for one in part if isinstance(part, tuple) else (part,):
            if isinstance(one, type) and not self.needs_code and (name_of(one) or "").partition(".")[0] not in ROOTS:
                raise CannotKeep(
                    f"a result is a {one.__qualname__}, a class of yours, and a file has no code.\nReturn a tuple or a "
                    "dict, or register the class by a name, where it is saved and where it is loaded: "
                    "torch.export.register_dataclass(..., serialized_type_name=...)"
                )
        return self(part)

    def _tensor(self, tensor: torch.Tensor) -> Any:
        if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.layout != torch.strided:
            raise CannotKeep(
                f"the program reads a {type(tensor).__name__} {Spec.of(tensor)} that is neither an argument nor "
                "declared state"
            )
        whole = torch.empty(tensor.untyped_storage().nbytes(), dtype=torch.uint8)
        whole.set_(tensor.untyped_storage())
        blob = self._blob(whole.numpy().tobytes(), "tensor")
        return {"is": "tensor", "data": blob, "spec": self(Spec.of(tensor)), "offset": tensor.storage_offset()}

    def _builtin(self, function: Any) -> Any:
        """A kernel that was built, or a function of torch's."""
        module = function.__self__
        is_ours = isinstance(module, ModuleType) and function.__name__.startswith("kernel_")
        if is_ours and getattr(module, "__file__", None):
            return {"is": "kernel", "code": self._file(Path(str(module.__file__))), "name": function.__name__}
        return self._known(function)

    def _error(self, error: Exception) -> Any:
        return {"is": "error", "type": self(type(error)), "arguments": self(error.args)}

    def _known(self, value: Any) -> Any:
        if (namespace := op_namespace(value)) is not None:
            return {"is": "ops", "name": namespace}
        name = name_of(value)
        if name is None or (not self.needs_code and name.partition(".")[0] not in ROOTS):
            raise CannotKeep(f"the program refers to {_words(value)}, which no file can hold")
        return {"is": "known", "name": name}

    # -- blobs ------------------------------------------------------------------------------------------

    def _file(self, path: Path) -> str:
        try:
            return self._blob(path.read_bytes(), "code")
        except FileNotFoundError:
            raise CannotKeep(
                f"its compiled code, {path}, was loaded and has been removed since, to keep the cache within its "
                "limit.\nCompile it anew and save it then."
            ) from None

    def _blob(self, data: bytes, folder: str) -> str:
        name = f"{folder}/{hashlib.sha256(data).hexdigest()}"
        self.blobs[name] = data
        return name


def _size(size: Size) -> Any:
    """A size that varies: how it is computed, and from what."""
    symbols = [[repr(one), str(one), one.value] for one in size.symbols]
    return {"is": "size", "code": repr(size), "symbols": symbols}


def _pieces(lines: Iterable[Line]) -> Iterator[Any]:
    """Lines as JSON: checks by their parts, and what is between them as one text."""
    for kind, some in groupby(lines, type):
        if kind is str:
            yield "\n".join(map(str, some))
        else:
            yield from ({part: text for part, text in vars(line).items() if text} for line in some)


def _words(value: Any) -> str:
    if isinstance(value, Lost):
        return f"globals of {', '.join(value.names)}, which belong to no module that is imported"
    if isinstance(value, SameWrapper):
        return f"an input that is a {value.recipe.kind.__name__}, a tensor that wraps others"
    if isinstance(value, CellType):
        return f"a variable around the function (now {str(value.cell_contents)[:40]}; make it an argument or a default)"
    if isinstance(value, torch.nn.Module):
        return f"a {type(value).__name__} that is an argument, or in none of its variables, modules and declared state"
    if isinstance(value, OrderedDict):
        return "hooks of a module"
    named = getattr(value, "__qualname__", None)
    return f"`{named}`" if isinstance(named, str) else f"a {type(value).__name__} object"
