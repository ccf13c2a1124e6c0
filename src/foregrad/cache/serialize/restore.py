"""Restore: the functions that `describe` has described, made again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from foregrad.cache.serialize.callable_parts import class_of
from foregrad.cache.serialize.graphs import graph_from_json
from foregrad.cache.serialize.known_names import find
from foregrad.cache.serialize.plain_values import from_json
from foregrad.cache.serialize.size_code import computed
from foregrad.cache.serialize.state_places import PLACES, StatePlaces
from foregrad.core.errors import CorruptArtifact, ForegradError, StaleArtifact
from foregrad.core.generated import Check, Generated, Line
from foregrad.core.spec import Spec
from foregrad.torch_private.serialization import load_extension, tree_spec_from_text

if TYPE_CHECKING:
    from foregrad.runtime.compiled_stage import CompiledStage
    from foregrad.torch_private.symbolic_shapes import Shapes


@contextmanager
def as_described(what: str) -> Iterator[None]:
    """What fails here, fails for what the file says: that is an error of the file's, and a disk's is the disk's."""
    try:
        yield
    except (ForegradError, OSError):
        raise
    except Exception as error:
        raise CorruptArtifact(
            f"{what} cannot be made from its description: {error!r}\nMake the file again: save what it was saved from."
        ) from error


def lines_of(function: Any) -> tuple[Line, ...]:
    """The lines of a function in a table."""
    pieces = function["lines"]
    return tuple(
        line for piece in pieces for line in ([Check(**piece)] if isinstance(piece, dict) else piece.split("\n"))
    )


class Restorer:
    """Makes the objects of a table, each when it is first asked for. `read` gives the contents of a blob, `unpack` a
    file with them, for the loader of libraries, and other blobs beside it."""

    def __init__(
        self,
        table: Sequence[Any],
        read: Callable[[str], bytes | memoryview],
        places: StatePlaces,
        unpack: Callable[[str, Mapping[str, str]], Path],
        record: Callable[[], CompiledStage] | None = None,
    ) -> None:
        self.places = places
        self._read = read
        self._unpack = unpack
        self._record = record
        self._table = table
        self._objects: dict[int, Any] = {}
        self._end = len(table)  # an object is made of those before it
        self._modules: dict[str, Any] = {}
        self._symbols: dict[str, Any] = {}  # sizes of dimensions, by their names in code

    def __call__(self, data: Any) -> Any:
        """The value of a description."""
        return from_json(data, self._object)

    def _object(self, data: Any) -> Any:
        if data.get("is") == "recipe":
            return self(data["of"]).make()
        place = data["at"] if data.get("is") == "object" else -1
        if not 0 <= place < self._end:
            raise CorruptArtifact(f"a description refers to what is not before it: {str(data)[:80]}")
        if place not in self._objects:
            end, self._end = self._end, place
            try:
                with as_described("an object"):
                    self._objects[place] = self._make(self._table[place])
            finally:
                self._end = end
        return self._objects[place]

    def _make(self, data: Any) -> Any:
        kind = data.get("is")
        if kind in PLACES:
            return self.places.find(data)
        maker = getattr(self, f"_{kind}", None) if kind in _KINDS else None
        if maker is None:
            raise CorruptArtifact(f"there is no kind of object {kind!r}")
        return maker(data)

    def _function(self, data: Any) -> Any:
        names = {name: self(value) for name, value in data["names"].items()}
        recipes = {n: self(v["of"]) for n, v in data["names"].items() if isinstance(v, dict) and v["is"] == "recipe"}
        bytecode = bytes(self._read(data["bytecode"])) if "bytecode" in data else b""
        return Generated(data["name"], lines_of(data), names, recipes, bytecode).load()

    def _made(self, data: Any) -> Any:
        make = class_of(data["kind"])
        if make is None:
            raise CorruptArtifact(f"there is no kind of object {data['kind']!r}")
        return make(**{part: self(value) for part, value in data["parts"].items()})

    def _op(self, data: Any) -> Any:
        namespace, _, rest = data["name"].partition("::")
        name, _, overload = rest.partition(".")
        try:
            return getattr(getattr(getattr(torch.ops, namespace), name), overload or "default")
        except AttributeError:
            raise StaleArtifact(f"there is no op {data['name']} here: import what defines it first") from None

    def _library(self, data: Any) -> Any:
        from foregrad.backends.library import Library

        ops = {} if data["ops"] is None else {".json": data["ops"]}  # which torch looks for beside the library
        path = self._unpack(data["code"], ops)
        return Library(path, self(data["places"]), self(data["constants"]))

    def _kernel(self, data: Any) -> Any:
        if data["code"] not in self._modules:
            self._modules[data["code"]] = load_extension("kernel", self._unpack(data["code"], {}))
        return getattr(self._modules[data["code"]], data["name"])

    def _stage(self, data: Any) -> Any:
        from foregrad.runtime.partial_backward import KeptStage

        return KeptStage(data["name"], self(data["backwards"]), self(data["tangents"]), self._record)

    def _graph(self, data: Any) -> Any:
        return cache(lambda: graph_from_json(data, self))  # most are never asked for

    def _structure(self, data: Any) -> Any:
        return tree_spec_from_text(data["text"], [self(part) for part in data["parts"]])

    def _tensor(self, data: Any) -> Any:
        spec: Spec = self(data["spec"])
        read = self._read(data["data"])
        flat = torch.frombuffer(bytearray(read), dtype=torch.uint8) if len(read) else torch.empty(0, dtype=torch.uint8)
        if (data["offset"] + spec.extent) * spec.dtype.itemsize > len(read) or min((0, *spec.stride, data["offset"])):
            raise CorruptArtifact(f"a tensor {spec} does not lie within its {len(read)} bytes")
        whole = torch.empty(0, dtype=spec.dtype)
        return whole.set_(flat.untyped_storage(), data["offset"], spec.shape, spec.stride)

    def _method(self, data: Any) -> Any:
        return getattr(self(data["of"]), data["name"])

    def _error(self, data: Any) -> Any:
        return self(data["type"])(*self(data["arguments"]))

    def _known(self, data: Any) -> Any:
        return find(data["name"])

    def _ops(self, data: Any) -> Any:
        return getattr(torch.ops, data["name"])

    @cached_property
    def shapes(self) -> Shapes:
        """The sizes that vary in what is described."""
        from foregrad.record.symbols.sizes import Formulas
        from foregrad.torch_private.symbolic_shapes import Shapes

        return Shapes(lambda: None, Formulas(lambda code, text: None))

    def _size(self, data: Any) -> Any:
        for code, text, value in data["symbols"]:
            if type(code) is not str or not code.isidentifier() or type(text) is not str or type(value) is not int:
                raise CorruptArtifact(f"a size is of {code!r:.80}")
            if code not in self._symbols:
                self._symbols[code] = self.shapes.new_symbol(value, code, text, text)
        return self.shapes.size(computed(data["code"], self._symbols))


_KINDS = (
    "function", "made", "op", "library", "kernel", "stage", "graph", "structure", "tensor", "method", "error", "known",
    "ops", "size",
)  # fmt: skip
