"""Data only: the calls of a file that nobody has signed, built here from what the file says, with none of its code.

Compiled code in the file is not looked at: its graphs are compiled on this machine. Texts of functions are checked and
written anew, and everything that they call is made by the closed lists of `allowed`.
"""

from __future__ import annotations

import builtins
import json
import math
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import fx

from foregrad.backends.backend import Backend, start
from foregrad.backends.guarded_code import Guarded
from foregrad.backends.sizes_at_call import WhereItHolds, holding
from foregrad.cache.serialize.allow_list import allowed_error, allowed_function, allowed_method, allowed_op, refused
from foregrad.cache.serialize.callable_parts import class_of
from foregrad.cache.serialize.checked_code import BUILTINS, Described, checked_code
from foregrad.cache.serialize.graphs import graph_from_json
from foregrad.cache.serialize.restore import Restorer, lines_of
from foregrad.cache.serialize.state_places import StatePlaces
from foregrad.core.errors import CorruptArtifact
from foregrad.core.generated import Generated
from foregrad.torch_private.guards import global_state
from foregrad.torch_private.serialization import plain_tree_spec_from_text

#: Kinds of objects that may be made from any file. Each only holds its parts, or calls those that are functions here.
_KINDS = frozenset(
    (
        "AutogradFunction", "CompiledBackward", "Fitting", "FromList", "Guarded", "InGradMode", "NumberSpec",
        "Numbered", "Numbers", "Overlap", "Pure", "RareBackward", "Redraw", "SamePattern", "SameState", "SameTensors",
        "SizeSpec", "Spec", "Tangents",
    )
)  # fmt: skip
_FUNCTIONS = frozenset(("function", "made", "op", "known", "method"))
#: Checked code cannot name the last one; C++ that it calls looks for it here when it imports something of torch's.
_BUILTINS = {name: getattr(builtins, name) for name in (*BUILTINS, "__import__")}
#: Of which checked code reads a few names; it cannot have them as values.
_LIBRARIES = {"math": math, "torch": torch}
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,199}", re.ASCII)


class DataOnly(Restorer):
    """Makes the objects of a table from closed lists; `backend` compiles the graphs."""

    def __init__(self, table: Any, read: Callable[[str], Any], places: StatePlaces, backend: Backend) -> None:
        super().__init__(table, read, places, _no_code)
        self._backend = backend

    def _function(self, data: Any) -> Any:
        lines = checked_code(data["name"], lines_of(data), self._described(data["names"]))
        names = {name: self(value) for name, value in data["names"].items()}
        recipes = {n: self(v["of"]) for n, v in data["names"].items() if isinstance(v, dict) and v["is"] == "recipe"}
        return Generated(data["name"], lines, {**names, "__builtins__": _BUILTINS}, recipes).load()

    def _described(self, names: dict[str, Any]) -> Described:
        kinds = {name: self._kind(value) for name, value in names.items()}
        groups = {kind: frozenset(n for n, found in kinds.items() if found == kind) for kind in set(kinds.values())}
        nothing: frozenset[str] = frozenset()
        functions, modules = groups.get("function", nothing), groups.get("module", nothing)
        return Described(functions, modules, groups.get("value", nothing), groups.get("library", nothing))

    def _kind(self, value: Any) -> str:
        """What a name stands for: a function, a module of the state, a library or another value."""
        if not isinstance(value, dict):
            return "value"
        if value.get("is") == "recipe":
            return "function"
        place = value.get("at") if value.get("is") == "object" else None
        if type(place) is not int or not 0 <= place < len(self._table):
            return "value"
        described = self._table[place]
        if described.get("is") == "known" and described.get("name") in _LIBRARIES:
            return "library"
        kind = described.get("is")
        return "function" if kind in _FUNCTIONS else "module" if kind == "module" else "value"

    def _made(self, data: Any) -> Any:
        kind, parts = data["kind"], data["parts"]
        if kind not in _KINDS:
            raise refused(f"an object of the kind {kind!r:.80}")
        if kind == "Guarded":
            return self._compiled(self(parts["graph"])(), _word(parts["name"]))
        made = {_word(part): self(value) for part, value in parts.items()}
        if kind == "AutogradFunction":
            _word(made["name"])
        if kind == "SameState" and not _alike(json.loads(made["state"]), json.loads(global_state())):
            raise CorruptArtifact("the modes of torch that a call relies on are not those that there are")
        make = class_of(kind)
        assert make is not None
        return make(**made)

    def _compiled(self, graph: fx.GraphModule, name: str) -> Any:
        """A graph, compiled here. What is assumed of sizes that vary is checked where it is run: the file does not."""
        made = start(self._backend, graph, name)()
        conditions = [self.shapes.code(one) for one in self.shapes.assumed()] if self._symbols else []
        if conditions and isinstance(made, Guarded):
            made.run = WhereItHolds(made.run, holding(graph, conditions), made.op_by_op)
        return made

    def _op(self, data: Any) -> Any:
        return allowed_op(data["name"])

    def _known(self, data: Any) -> Any:
        name = data["name"]
        return _LIBRARIES[name] if isinstance(name, str) and name in _LIBRARIES else allowed_function(name)

    def _method(self, data: Any) -> Any:
        owner = data["of"]
        place = owner["at"] if isinstance(owner, dict) and owner.get("is") == "object" else -1
        described = self._table[place] if 0 <= place < self._end else {}
        return allowed_method(described.get("name") if described.get("is") == "known" else None, data["name"])

    def _error(self, data: Any) -> Any:
        described = self._table[data["type"]["at"]]
        arguments = self(data["arguments"])
        if type(arguments) is not tuple or not all(type(one) is str for one in arguments):
            raise CorruptArtifact("an error has arguments that are no texts")
        return allowed_error(described.get("name"))(*arguments)

    def _graph(self, data: Any) -> Any:
        for op, name, target, *_ in data["nodes"]:
            if op not in ("placeholder", "call_function", "get_attr", "output"):
                raise refused(f"a node of the kind {op!r:.80} in a graph")
            _word(name)
            if op != "call_function":
                _word(target)
        return cache(lambda: _checked(graph_from_json(data, self)))

    def _structure(self, data: Any) -> Any:
        found = plain_tree_spec_from_text(data["text"])
        if isinstance(found, str):
            raise refused(f"the container {found!r:.80}")
        return found

    def _library(self, data: Any) -> Any:
        raise refused("a shared library")

    def _kernel(self, data: Any) -> Any:
        raise refused("a shared library")

    def _ops(self, data: Any) -> Any:
        raise refused(f"all ops of {data['name']!r:.80}")


def _no_code(name: str, beside: Any) -> Any:
    raise refused("a shared library")


def _checked(graph: Any) -> Any:
    """A graph whose names are names, since compilers write them into code."""
    for node in graph.graph.nodes:
        for key in node.kwargs:
            _word(key)
        for text in _texts((node.args, node.kwargs)):
            if not text.isprintable() or any(c in text for c in "\\\"'`{}"):
                raise refused(f"the text {text!r:.80} in a graph")
    return graph


def _texts(value: Any) -> Any:
    """Texts among the arguments of an op."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _alike(one: Any, other: Any) -> bool:
    """Whether two pieces of JSON have the same form: where it is another, torch ends the process."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) is int and type(other) is int:
        return 0 <= one < 1 << 16
    return type(one) is type(other)


def _word(name: Any) -> str:
    if not isinstance(name, str) or not _WORD.fullmatch(name):
        raise CorruptArtifact(f"{name!r:.80} is no name")
    return name
