"""Read state: what executed code has read in Python, by its contents, so that two processes can be compared.

A capture knows which code ran, and by which names that code asks for things (`record/python/executed_code.py`); the
walk from there (`runtime/guards/reach.py`) finds the objects, in the user's modules and in libraries. Each becomes an
ingredient here: a variable that was set, a function that was patched, an entry of a registry is another text. A capture
that reads the same everywhere goes the same way, so its program holds.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from foregrad.cache.key.classes import show_foreign
from foregrad.cache.key.code import doubts_about
from foregrad.cache.key.excluded import boundary_around
from foregrad.cache.key.fingerprints import Fingerprints
from foregrad.cache.key.ingredients import READ, Ingredient, Key
from foregrad.cache.key.libraries import library_of_function
from foregrad.cache.key.loaded_modules import loaded_by_captures
from foregrad.cache.key.sources import SHOWERS, Sources, finish, look_or_doubt
from foregrad.cache.key.walk import KeyWalk
from foregrad.process.garbage_collection import no_garbage_collection
from foregrad.process.process_variables import OF_THIS_PROCESS
from foregrad.record.python.executed_code import Reads
from foregrad.runtime.guards.comparable import objects_in
from foregrad.runtime.guards.nodes import AttributesNode, Entries, HolderNode, Hooks, Items, ReadNode, TensorNode
from foregrad.runtime.guards.reach import PythonReads
from foregrad.runtime.guards.walk import GuardWalk as Reached
from foregrad.runtime.guards.walk import KnownTensors

#: As much of what an object holds is shown to people.
_MOST_SHOWN = 4000


def read_state(
    target: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    reads: Reads,
    *,
    state: tuple[Any, ...] = (),
    is_after_capture: bool = False,
) -> Sources:
    """What a capture that read by these names has found, or would find now."""
    again = PythonReads(target, state, (), reads)
    with no_garbage_collection():
        arguments = objects_in({"args": args, **kwargs})
        loaded = loaded_by_captures()
        boundary = boundary_around(loaded, is_after_capture=is_after_capture)
        reached = again.reach(again.scopes(), KnownTensors(), arguments, boundary)
        prints = Fingerprints(reached.asked, loaded)
        told = _Holders(reached, prints).ingredients()
        walk = KeyWalk(SHOWERS, declared=state, prefix=READ)
        for place, value in prints.foreign.items():  # met in containers of libraries
            look_or_doubt(walk, place, functools.partial(show_foreign, walk, value, place))
        code = finish(walk, is_whole=False)
    doubts = [f"{name} is {why}" for name, why in reached.frozen.items()]
    doubts += [doubt for function in _users_functions(reached) for doubt in doubts_about(function)]
    if reads.looks_around:
        doubts.append(
            "code that it runs asks for what differs in each process, such as sys.modules, or its callers' variables"
        )
    return Sources(Key((*told, *code.key.ingredients)), (*doubts, *prints.doubts, *code.unsure))


def _users_functions(reached: Reached) -> list[FunctionType]:
    """Functions of the user's that ran: libraries may have led to them, where the key of the sources does not look."""
    functions = [one.live for one in reached.holders if type(one.live) is FunctionType and reached.ran(one.live)]
    return [one for one in functions if library_of_function(one) is None]


class _Holders:
    """The texts of all holders of a walk: each by a name of its own, others in it by their names."""

    def __init__(self, reached: Reached, prints: Fingerprints) -> None:
        self.prints = prints
        self._tested = reached.reads.tested
        self._holders = [one for one in reached.holders if isinstance(one, HolderNode)]
        self._names = dict(zip(map(id, self._holders), _distinct(map(_name, self._holders)), strict=True))

    def ingredients(self) -> list[Ingredient]:
        found = []
        for holder in self._holders:
            try:
                lines = self._lines(holder)
            except Exception as error:  # noqa: BLE001  objects of users may do anything when they are looked at
                self.prints.doubts[f"{self._names[id(holder)]} cannot be looked at: {error}"] = None
                continue
            if lines:
                text = "\n".join(lines)
                shown = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]} ..."
                found.append(Ingredient.of(f"{READ}{self._names[id(holder)]}", text, shown))
        return found

    def _lines(self, holder: HolderNode) -> list[str]:
        if isinstance(holder, AttributesNode):
            return self._attributes(holder)
        name = self._names[id(holder)]
        told = [self._child(one, f"{name}[{place}]") for place, one in enumerate(holder.children)]
        kind = self.prints.of(type(holder.live), f"type of {name}")
        if isinstance(holder, Entries) and not isinstance(holder, Hooks):
            keys = [self.prints.of(key, f"key of {name}") for key in holder.keys]
            told = [f"{key}: {value}" for key, value in zip(keys, told, strict=True)]
        elif not isinstance(holder, (Items, Hooks)):
            kind = ""
        elif isinstance(holder.live, (set, frozenset)) and holder.name.rpartition(".")[2] in self._tested:
            told.sort()  # all that was asked is what is in it
        return [kind, *told] if kind else told

    def _attributes(self, holder: AttributesNode) -> list[str]:
        home = holder.home
        left_out = OF_THIS_PROCESS.get(home, frozenset())
        pairs = [
            (key, one)
            for key, one in zip(holder.keys, holder.children, strict=True)
            if key not in left_out and not _is_part_of(home, key, one) and not self.prints.is_left_out(one.live)
        ]
        return [f"{key} = {self._child(one, f'{self._names[id(holder)]}.{key}')}" for key, one in pairs]

    def _child(self, node: ReadNode, place: str) -> str:
        if isinstance(node, HolderNode):
            return f"-> {self._names[id(node)]}"
        if isinstance(node, TensorNode):
            return self.prints.tensor(node.look)
        return self.prints.of(node.live, place)


def _is_part_of(home: str, key: str, node: ReadNode) -> bool:
    """Whether a variable of a package is a module in it, which is there as soon as it is loaded."""
    return isinstance(node.live, ModuleType) and vars(node.live).get("__name__") == f"{home}.{key}"


def _name(holder: HolderNode) -> str:
    if isinstance(holder, AttributesNode) and holder.home:
        return f"{holder.home}.{holder.name}" if holder.dunders else holder.home
    return holder.name or type(holder.live).__name__


def _distinct(names: Iterable[str]) -> list[str]:
    """Names, with a number where one comes again."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    return found
