"""The guard of what a function read in Python: quick while nothing has changed, and exact when something has.

Dicts have versions, so one look says that nothing in them has changed. Where a version differs, the entries that were
read are compared; where one of these is another object, its contents.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import Any

from foregrad.core.generated import load_source
from foregrad.process.dict_versions import Version, has_versions, version_of
from foregrad.process.forks import lock
from foregrad.runtime.guards.nodes import ArrayNode, AttributesNode, Entries, Fields, HolderNode
from foregrad.runtime.guards.python_objects import field_text, holds_nothing

#: As many are compared one by one; more of a kind are compared together.
_FEW = 8


class PythonGuard:
    """Whether everything that a function read in Python is as it was: `check()`.

    After one that says no, `why` says what is not. Nothing that it holds refers to it, nor to its function: what it
    watches is freed with it, at once.
    """

    def __init__(
        self, holders: Iterable[HolderNode | ArrayNode], empty: Iterable[tuple[str, Any]], frozen: tuple[str, ...]
    ) -> None:
        self.frozen = frozen  # what was read and is not checked, in words
        self._watched = _Watched(holders, empty)
        self.check: Callable[[], bool] = self._watched.write()

    @property
    def why(self) -> str | None:
        return self._watched.why

    def forget_why(self) -> None:
        self._watched.why = None


class _Moves:
    """Takes note of objects that have taken the places of others, and knows the versions of the dicts among them."""

    def __init__(self) -> None:
        self.count = 0
        self.versions: list[Version] = []
        self.expected: list[int] = []

    def note(self, holder: HolderNode) -> None:
        self.count += 1

    def note_dict(self, place: int, holder: HolderNode) -> None:
        self.count += 1
        self.versions[place] = version_of(holder.live)
        self.expected[place] = self.versions[place].value


class _Watched:
    """What is watched, and how it is compared."""

    def __init__(self, holders: Iterable[HolderNode | ArrayNode], empty: Iterable[tuple[str, Any]]) -> None:
        self.why: str | None = None
        self._lock = lock()
        self._names_of_empty = tuple(empty)  # what must stay empty: hooks of modules
        self._empty = tuple(one for _, one in self._names_of_empty)
        self._moves = _Moves()
        self._num_refreshed = 0  # of the moves, as many are known where fields are compared
        self._versioned: list[HolderNode] = []
        self._compared: list[Any] = []  # looked through at each call
        self._of_fields: list[Fields] = []
        for holder in holders:
            self._add(holder)
        self._groups = self._grouped()

    def _add(self, holder: Any) -> None:
        moves = self._moves
        if isinstance(holder, Fields):
            self._of_fields.append(holder)
            holder.on_move = moves.note
        elif isinstance(holder, (AttributesNode, Entries)) and type(holder.live) is dict and has_versions():
            # An OrderedDict may be put into another order without a new version.
            holder.on_move = functools.partial(moves.note_dict, len(self._versioned))
            self._versioned.append(holder)
            moves.versions.append(version_of(holder.live))
            moves.expected.append(moves.versions[-1].value)
        elif not isinstance(holder.live, (tuple, frozenset)):
            self._compared.append(holder)
            if isinstance(holder, HolderNode):
                holder.on_move = moves.note

    def _grouped(self) -> dict[Any, tuple[list[Any], list[Any]]]:
        """Objects by the getter of a field, and the values that it had."""
        found: dict[Any, tuple[list[Any], list[Any]]] = {}
        for holder in self._of_fields:
            for getter, child in zip(holder.getters, holder.children, strict=True):
                objects, values = found.setdefault(getter, ([], []))
                objects.append(holder.live)
                values.append(child.live)
        return found

    # -- the quick way --------------------------------------------------------------------------------------

    def write(self) -> Callable[[], bool]:
        names: dict[str, Any] = {
            "versions": self._moves.versions,
            "expected": self._moves.expected,
            "all": all,
            "map": map,
            "is_": operator.is_,
            "any": any,
            "empty": self._empty,
            "compared": self._compared,
            "dicts": self._dicts,
            "fields": self._fields,
            "others": self._others,
            "nothing_in": self._nothing_in,
        }
        lines = ["def check():"]
        if self._versioned:
            count = len(self._versioned)
            few = " or ".join(f"versions[{i}].value != expected[{i}]" for i in range(count))
            many = "[v.value for v in versions] != expected"
            lines.append(f"    if ({few if count <= _FEW else many}) and not dicts(): return False")
        if self._groups:
            lines += ["    try:", f"        if ({self._fields_text(names)}) and not fields(): return False"]
            lines += ["    except (AttributeError, ValueError):", "        if not fields(): return False"]
        if self._compared:
            lines += ["    for one in compared:", "        if not one.is_same() and not others(one): return False"]
        if self._empty:
            lines.append("    if any(empty) and not nothing_in(): return False")
        lines.append("    return True\n")
        return load_source("\n".join(lines), names, "check")

    def _fields_text(self, names: dict[str, Any]) -> str:
        conditions = []
        for number, (getter, (objects, values)) in enumerate(self._groups.items()):
            names |= {f"get{number}": getter, f"objects{number}": objects, f"values{number}": values}
            if len(objects) <= _FEW:
                text = field_text(getter) or f"get{number}({{}})"
                conditions += [
                    f"{text.format(f'objects{number}[{i}]')} is not values{number}[{i}]" for i in range(len(objects))
                ]
            else:
                conditions.append(f"not all(map(is_, map(get{number}, objects{number}), values{number}))")
        return " or ".join(conditions)

    # -- when something has changed -------------------------------------------------------------------------

    def _dicts(self) -> bool:
        with self._lock:
            before = self._moves.count
            for place, holder in enumerate(self._versioned):
                now = self._moves.versions[place].value
                if now != self._moves.expected[place]:
                    if not self._is_fine(holder.update(holder.live), before):
                        return False
                    self._moves.expected[place] = now
            self._refresh()
        return True

    def _fields(self) -> bool:
        with self._lock:
            before = self._moves.count
            for holder in self._of_fields:
                if not self._is_fine(holder.update(holder.live), before):
                    return False
            self._moves.count += 1  # a field may hold another object that is as good
            self._refresh()
        return True

    def _others(self, holder: Any) -> bool:
        with self._lock:
            if not self._is_fine(holder.update(holder.live), self._moves.count):
                return False
            self._refresh()
        return True

    def _nothing_in(self) -> bool:
        name = next((name for name, one in self._names_of_empty if not holds_nothing(one)), None)
        return self._is_fine(None if name is None else f"{name} was empty, is not", self._moves.count)

    def _is_fine(self, why: str | None, num_moves: int) -> bool:
        """Whether there is nothing that differs. If there is, and objects were followed before it was found, everything
        is looked at the next time."""
        self.why = why
        if why is not None and num_moves != self._moves.count:
            self._moves.expected[:] = [-1] * len(self._moves.expected)
            for _, values in self._groups.values():
                values[:] = [_UNKNOWN] * len(values)
        return why is None

    def _refresh(self) -> None:
        """The fields of objects that have taken the place of others."""
        if self._num_refreshed != self._moves.count:
            for getter, (objects, values) in self._grouped().items():
                self._groups[getter][0][:], self._groups[getter][1][:] = objects, values
            self._num_refreshed = self._moves.count


_UNKNOWN = object()
