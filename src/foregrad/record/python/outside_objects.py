"""Outside: objects of Python's that code of the user's can change, as they were before it did.

When a function begins, it can change what its names lead to: arguments, variables of its module and closure, and their
attributes and items. These are copied, one level each, and compared when everything has run.
"""

from __future__ import annotations

import dis
import functools
import gc
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import (
    BuiltinMethodType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    MethodWrapperType,
    ModuleType,
)
from typing import Any

import torch

from foregrad.process.garbage_collection import is_young
from foregrad.record.frames import is_installed, is_users
from foregrad.record.ops import Origin
from foregrad.record.python.executed_code import is_library, is_library_file, is_made_by_library
from foregrad.record.python.iterators import PLAIN
from foregrad.record.python.side_effects import Change, text_of
from foregrad.record.python.snapshots import (
    ABSENT,
    CONTAINERS,
    TABLES,
    Variables,
    attributes,
    contents_of,
    is_closed,
    is_generator,
    keeps_for_itself,
    put_back,
    same,
)
from foregrad.torch_private.modules import children_of

_DEPTH = 16  # as many steps from a name
_MOST_ITEMS = 1_000


@dataclass(frozen=True, eq=False)
class Snapshot:
    """An object, the name that led to it, and a copy of what it held. `code` is what could change it."""

    name: str
    value: Any
    before: Any
    code: CodeType
    holder: Snapshot | None  # what led to it
    is_local: bool  # it was in a variable of a function that another one had called
    was_tracked: bool  # by Python's garbage collector, which then knows its age

    @property
    def was_there(self) -> bool:
        """Whether it was there before the function ran: what that makes for itself it may change."""
        if self.was_tracked:
            return not is_young(self.value)
        return not self.is_local if self.holder is None else self.holder.was_there

    @property
    def line(self) -> Origin:
        """Where it was changed, as far as one can tell."""
        return _line(self.code, self.name)

    @property
    def now(self) -> Any:
        """What it holds by now."""
        return contents_of(self.value)

    def in_words(self) -> list[Change]:
        return list(_in_words(self))

    @property
    def is_changed(self) -> bool:
        return not same(self.before, contents_of(self.value)) and self.was_there


class Outside:
    """Copies of what code that runs can change."""

    def __init__(self) -> None:
        self._kept: dict[Any, Snapshot] = {}
        self._looked: dict[tuple[int, int], Any] = {}  # objects by code and id, which are kept alive
        self._num_begun = 0
        self._outer: set[Any] = set()  # code that was there before the function ran, and that nobody inside calls
        self._elsewhere: frozenset[int] = frozenset()
        self.copied: frozenset[int] = frozenset()  # ids of lists and dicts that stand for those of the caller

    def leave_out(self, objects: Iterable[Any]) -> None:
        """Do not look at these: they are looked after elsewhere."""
        self._elsewhere = frozenset(map(id, objects))

    def look_at(self, name: str, value: Any, code: CodeType | None) -> None:
        """Look at an object that a function of C may change; `code` has given it away."""
        self._look(name, value, code or _UNKNOWN, AssignedNames(frozenset(), frozenset()), None, False)

    def enter(self, function: Any) -> None:
        """A function that was there before is about to be called by torch, such as a hook of an input."""
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", function)
        kind: Any = type(function)
        self._outer.add(getattr(function, "__code__", None) or getattr(kind.__call__, "__code__", None))

    def begins(self, frame: FrameType) -> None:
        """A function of Python is about to run."""
        code, variables = frame.f_code, frame.f_globals
        names = None if is_made_by_library(frame) else _names_to_follow(code)
        if names is None:
            return
        is_inner, self._num_begun = self._num_begun > 0 and code not in self._outer, self._num_begun + 1
        if not is_inner:
            self.look_at("os.environ", os.environ, code)
        for name, value in list(frame.f_locals.items()):
            self._look(name, value, code, names, None, is_inner)
        for name in names.all:
            if name in variables:
                self._look(name, variables[name], code, names, None, False)
        if names.assigned and (id(variables), code) not in self._kept:
            read = Variables(variables, names.assigned)
            self._kept[id(variables), code] = Snapshot("", read, read.read(), code, None, False, False)

    def _look(
        self, name: str, value: Any, code: CodeType, names: AssignedNames, holder: Snapshot | None, is_inner: bool
    ) -> None:
        waiting = [(name, value, holder, _DEPTH)]
        while waiting:
            name, value, holder, depth = waiting.pop()
            value = _module_of(value) or value
            kind = type(value)
            if not depth or kind in PLAIN or issubclass(kind, _ELSEWHERE) or (id(code), id(value)) in self._looked:
                continue
            if f"{kind.__module__}.".startswith("foregrad.") or id(value) in self._elsewhere:
                continue
            self._looked[id(code), id(value)] = value
            kept = self._kept.get(id(value))
            if kept is None and id(value) not in self.copied:
                before = contents_of(value)
                if before is not ABSENT:
                    kept = Snapshot(name, value, before, code, holder, is_inner, gc.is_tracked(value))
                    self._kept[id(value)] = kept
            for part in _named_in(value, names):
                self._kept[id(part.variables), code] = Snapshot(
                    name, part, part.read(), code, kept or holder, is_inner, False
                )
            waiting += [(inner, one, kept or holder, depth - 1) for inner, one in inside(name, value, names.all)]

    def different(self) -> list[Snapshot]:
        """What is not as it was, whether it was there before or not."""
        return [kept for kept in self._kept.values() if not same(kept.before, contents_of(kept.value))]

    def drawn(self) -> list[Snapshot]:
        """Generators of NumPy's that have moved."""
        return [kept for kept in self._kept.values() if is_generator(type(kept.value)) and kept.is_changed]

    def changed(self) -> list[Snapshot]:
        """What else is not as it was."""
        return [kept for kept in self._kept.values() if not is_generator(type(kept.value)) and kept.is_changed]

    def changes(self, known: frozenset[int] = frozenset()) -> list[Change]:
        """The same in words, but for objects that others look after."""
        return [change for kept in self.changed() if id(kept.value) not in known for change in kept.in_words()]

    def undo(self) -> None:
        """Put everything back as it was."""
        for kept in (*self.changed(), *self.drawn()):
            put_back(kept.value, kept.before)


#: What holds code, is a tensor, or is looked after elsewhere.
_ELSEWHERE = (torch.Tensor, CodeType, FrameType)

#: Modules of Python's with classes whose methods, which are not looked at, read all attributes of their objects.
_READ_BY_METHODS = ("queue", "collections", "weakref", "_weakrefset", "multiprocessing.sharedctypes")


def _module_of(value: Any) -> ModuleType | None:
    """The module of a library whose variables a dict holds: of those, only what code names counts."""
    name = value.get("__name__") if type(value) is dict else None
    module = sys.modules.get(name) if type(name) is str else None
    is_its = isinstance(module, ModuleType) and vars(module) is value and not _is_own(module)
    return module if is_its else None


def _named_in(value: Any, names: AssignedNames) -> Iterator[Variables]:
    """Variables of a module that code names, and such attributes as a class of torch's would keep for itself."""
    if isinstance(value, ModuleType):
        yield Variables(vars(value), names.all, is_plain=not _is_own(value))
    elif keeps_for_itself(type(value)) and isinstance(getattr(value, "__dict__", None), dict):
        yield Variables(vars(value), frozenset(one for one in names.all - TABLES if one[:1] == "_" != one[1:2]))


def _is_own(module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    return module.__name__ == "__main__" or (isinstance(file, str) and not is_library_file(file))


def inside(name: str, value: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """What an object holds that code can get at by these names."""
    if isinstance(value, dict):
        yield from ((f"{name}[{_key_text(key)}]", one) for key, one in list(value.items())[:_MOST_ITEMS])
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"{name}[{place}]", one) for place, one in enumerate(list(value)[:_MOST_ITEMS]))
    elif isinstance(value, CellType):
        contents = contents_of(value)
        yield name, contents
    elif isinstance(value, (MethodType, BuiltinMethodType, MethodWrapperType)):
        yield name, value.__self__
        return
    elif isinstance(value, ModuleType):
        own = vars(value).items() if _is_own(value) else ()
        yield from ((f"{name}.{key}", one) for key, one in own if key in names and not isinstance(one, ModuleType))
        return
    elif isinstance(value, FunctionType):
        if not is_library(value.__code__):
            yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return
    if not isinstance(value, (CellType, FunctionType, MethodType, type)) and not is_closed(type(value)):
        yield f"type({name})", type(value)
    if isinstance(value, torch.nn.Module):
        yield from ((f"{name}.{key}", one) for key, one in children_of(value).items() if key in names)
    is_read = any(base.__module__ in _READ_BY_METHODS for base in type(value).__mro__)
    found = attributes(value, frozenset(getattr(value, "__dict__", ())) if is_read else names) or {}
    yield from ((f"{name}.{key}", one) for key, one in found.items() if key in names or is_read)


def _key_text(key: Any) -> str:
    """A key in words, without a call of code that is not Python's own."""
    return repr(key) if type(key) in PLAIN else f"a {type(key).__name__}"


def _in_words(kept: Snapshot) -> Iterator[Change]:
    before, now = kept.before, contents_of(kept.value)
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            was, is_now = before.get(key, ABSENT), now.get(key, ABSENT)
            if not same(was, is_now):
                text = key if isinstance(key, str) else _key_text(key)
                yield Change(f"{kept.name}.{text}".strip("."), f"{_was(was, is_now)} at {_line(kept.code, key)}")
    elif isinstance(kept.value, CONTAINERS):
        yield Change(kept.name, f"{_was(before[1], now[1])} at {kept.line}")
    elif isinstance(before, tuple):
        yield Change(kept.name, f"has other contents at {kept.line}")
    else:
        yield Change(kept.name, f"{_was(before, now)} at {kept.line}")


def _was(was: Any, now: Any) -> str:
    texts = ["absent" if one is ABSENT else text_of(one) for one in (was, now)]
    return "has other contents" if texts[0] == texts[1] else "was {}, is {}".format(*texts)


def _line(code: CodeType, name: str) -> Origin:
    """Where code changes something of this name, as far as one can tell."""
    last = name.rpartition(".")[2].partition("[")[0]
    named = [one.offset for one in dis.get_instructions(code) if one.argval == last]
    stored = [one.offset for one in dis.get_instructions(code) if one.argval == last and one.opname.startswith("STORE")]
    return Origin(code, (stored or named or [0])[0], "")


# -- which code can change something ------------------------------------------------------------------------


@dataclass(frozen=True)
class AssignedNames:
    """The names in code, and those of variables of its module that it assigns."""

    all: frozenset[str]
    assigned: frozenset[str]


_known: dict[CodeType, AssignedNames | None] = {}
_UNKNOWN = compile("", "<a function of C>", "exec")

#: Instructions that change something beside variables of the function itself.
_WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR", "STORE_DEREF", "STORE_GLOBAL")
_IN_PLACE = 13  # operators of BINARY_OP from here on: `+=` and its like


def _names_to_follow(code: CodeType) -> AssignedNames | None:
    """The names in code of the user's; None if it changes and calls nothing."""
    if code not in _known:
        is_own = is_users(code) and not is_installed(code) and code.co_name != "<module>"
        found = list(dis.get_instructions(code)) if is_own else []
        assigned = frozenset(one.argval for one in found if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
        _known[code] = AssignedNames(frozenset(code.co_names), assigned) if any(map(_can_change, found)) else None
    return _known[code]


def _can_change(one: dis.Instruction) -> bool:
    is_in_place = one.opname == "BINARY_OP" and (one.arg or 0) >= _IN_PLACE
    return is_in_place or one.opname in _WRITES or one.opname.startswith(("CALL", "DELETE_GLOBAL"))
