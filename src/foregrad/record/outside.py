"""Outside: objects of Python's that code of the user's can change, as they were before it did.

When a function begins, it can change what its names lead to: arguments, variables of its module and closure, and their
attributes and items. These are copied, one level each, and compared when everything has run.
"""

from __future__ import annotations

import dis
import gc
import itertools
import operator
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import CellType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy
import torch

from foregrad.record.beside import Change, text_of
from foregrad.record.executed import is_library
from foregrad.record.frames import is_installed, is_users
from foregrad.record.trace import Origin
from foregrad.words.garbage import is_young

ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "absent"})()
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_DEPTH = 5  # as many steps from a name
_MOST_ITEMS, _MOST_BYTES = 1_000, 1_000_000
_CONTAINERS = (list, dict, set, deque)


@dataclass(frozen=True, eq=False)
class Kept:
    """An object, the name that led to it, and a copy of what it held. `code` is what could change it."""

    name: str
    value: Any
    before: Any
    code: CodeType
    holder: Kept | None  # what led to it
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
        return not _same(self.before, contents_of(self.value)) and self.was_there


class Outside:
    """Copies of what code that runs can change."""

    def __init__(self) -> None:
        self._kept: dict[Any, Kept] = {}
        self._looked: dict[tuple[int, int], Any] = {}  # objects by code and id, which are kept alive
        self._num_begun = 0
        self._elsewhere: frozenset[int] = frozenset()
        self.copied: frozenset[int] = frozenset()  # ids of lists and dicts that stand for those of the caller

    def leave_out(self, objects: Iterable[Any]) -> None:
        """Do not look at these: they are looked after elsewhere."""
        self._elsewhere = frozenset(map(id, objects))

    def look_at(self, name: str, value: Any, code: CodeType | None) -> None:
        """Look at an object that a function of C may change; `code` has given it away."""
        self._look(name, value, code or _UNKNOWN, Names(frozenset(), frozenset()), None, False)

    def begins(self, frame: FrameType) -> None:
        """A function of Python is about to run."""
        code, variables = frame.f_code, frame.f_globals
        names = _names_to_follow(code)
        if names is None:
            return
        is_inner, self._num_begun = self._num_begun > 0, self._num_begun + 1
        for name, value in list(frame.f_locals.items()):
            self._look(name, value, code, names, None, is_inner)
        for name in names.all:
            if name in variables:
                self._look(name, variables[name], code, names, None, False)
        if names.assigned and (id(variables), code) not in self._kept:
            read = _Variables(variables, names.assigned)
            self._kept[id(variables), code] = Kept("", read, read.read(), code, None, False, False)

    def _look(self, name: str, value: Any, code: CodeType, names: Names, holder: Kept | None, is_inner: bool) -> None:
        waiting = [(name, value, holder, _DEPTH)]
        while waiting:
            name, value, holder, depth = waiting.pop()
            kind = type(value)
            if not depth or kind in _PLAIN or issubclass(kind, _ELSEWHERE) or (id(code), id(value)) in self._looked:
                continue
            if kind.__module__.startswith("foregrad.") or id(value) in self._elsewhere:
                continue
            self._looked[id(code), id(value)] = value
            kept = self._kept.get(id(value))
            if kept is None and id(value) not in self.copied:
                before = contents_of(value)
                if before is not ABSENT:
                    kept = Kept(name, value, before, code, holder, is_inner, gc.is_tracked(value))
                    self._kept[id(value)] = kept
            waiting += [(inner, one, kept or holder, depth - 1) for inner, one in inside(name, value, names.all)]

    def different(self) -> list[Kept]:
        """What is not as it was, whether it was there before or not."""
        return [kept for kept in self._kept.values() if not _same(kept.before, contents_of(kept.value))]

    def drawn(self) -> list[Kept]:
        """Generators of NumPy's that have moved."""
        return [kept for kept in self._kept.values() if is_generator(type(kept.value)) and kept.is_changed]

    def changed(self) -> list[Kept]:
        """What else is not as it was."""
        return [kept for kept in self._kept.values() if not is_generator(type(kept.value)) and kept.is_changed]

    def changes(self, known: frozenset[int] = frozenset()) -> list[Change]:
        """The same in words, but for objects that others look after."""
        return [change for kept in self.changed() if id(kept.value) not in known for change in kept.in_words()]

    def forget(self) -> None:
        """Let go of everything."""
        self._kept, self._looked = {}, {}

    def undo(self) -> None:
        """Put everything back as it was."""
        for kept in (*self.changed(), *self.drawn()):
            put_back(kept.value, kept.before)


@dataclass(frozen=True, eq=False)
class _Variables:
    """Variables of a module that code assigns."""

    variables: dict[str, Any]
    names: frozenset[str]

    def read(self) -> dict[str, Any]:
        return {name: self.variables[name] for name in self.names if name in self.variables}


#: What holds code, is a tensor, or is looked after elsewhere.
_ELSEWHERE = (torch.Tensor, ModuleType, CodeType, FrameType, torch.optim.Optimizer)


def is_generator(kind: type) -> bool:
    numpy = sys.modules.get("numpy.random")
    return numpy is not None and issubclass(kind, (numpy.Generator, numpy.RandomState, numpy.BitGenerator))


def _attributes(value: Any) -> dict[str, Any] | None:
    """The attributes of an object of the user's."""
    if isinstance(value, type):
        return {k: v for k, v in vars(value).items() if k[:2] != "__"} if not _is_closed(value) else None
    found = getattr(value, "__dict__", None) if _has_dict(type(value)) else None
    if isinstance(found, dict) and _is_closed(type(value)):  # what a class of torch's keeps for itself
        found = {key: one for key, one in found.items() if key[:1] != "_"}
    slots = {name: getattr(value, name, ABSENT) for name in _slots(type(value))}
    return {**found, **slots} if type(found) is dict else slots or None


def _has_dict(kind: type) -> bool:
    return kind.__dictoffset__ != 0


def _slots(kind: type) -> list[str]:
    named = [vars(one).get("__slots__", ()) for one in kind.__mro__]
    return [name for names in named for name in ((names,) if isinstance(names, str) else names) if name[:2] != "__"]


def _is_closed(kind: type) -> bool:
    """Whether a class belongs to Python, torch or NumPy."""
    top = kind.__module__.partition(".")[0]
    return top in ("torch", "numpy", "foregrad") or (top in sys.stdlib_module_names and top != "__main__")


def contents_of(value: Any) -> Any:
    """A copy of what an object holds, one level deep."""
    if isinstance(value, _Variables):
        return value.read()
    if isinstance(value, _CONTAINERS):
        own = _attributes(value) if type(value) not in _CONTAINERS else None
        return (type(value), dict(value) if isinstance(value, dict) else list(value), own)
    if isinstance(value, CellType):
        try:
            return value.cell_contents
        except ValueError:
            return ABSENT
    kind = type(value)
    if kind.__module__.partition(".")[0] == "numpy":
        return _of_numpy(value)
    if _is_iterator(value):
        return _of_iterator(value)
    if issubclass(kind, (FunctionType, MethodType)):
        return dict(vars(value)) if kind is FunctionType else ABSENT
    found = _attributes(value)
    return ABSENT if found is None else found


def _is_iterator(value: Any) -> bool:
    """Whether it is an iterator of Python's own, which keeps where it stands for itself."""
    return type(value).__module__ in ("builtins", "itertools") and hasattr(type(value), "__next__")


def _of_iterator(value: Any) -> Any:
    """Where an iterator stands, as far as it tells."""
    if type(value) is itertools.count:
        return repr(value)
    left = operator.length_hint(value, -1)
    if left >= 0:
        return "left", left
    inner = value.__reduce__()[1] if type(value) in (enumerate, zip, map, filter) else ()
    return ("inside", *(_of_iterator(one) if _is_iterator(one) else id(one) for one in inner)) if inner else ABSENT


def _of_numpy(value: Any) -> Any:
    if is_generator(type(value)):
        return value.get_state() if hasattr(value, "get_state") else getattr(value, "bit_generator", value).state
    is_small = hasattr(value, "tobytes") and value.nbytes <= _MOST_BYTES and not value.dtype.hasobject
    return (value.shape, value.dtype, value.tobytes()) if is_small else ABSENT


def put_back(value: Any, before: Any) -> None:
    """Give an object the contents that it had."""
    if _is_iterator(value):
        return  # what it has given is gone
    if isinstance(value, CellType):
        value.cell_contents = before
    elif isinstance(value, _CONTAINERS):
        value.clear()
        _refill(value, before[1])
    elif is_generator(type(value)):
        if hasattr(value, "set_state"):
            value.set_state(before)
        else:
            getattr(value, "bit_generator", value).state = before
    elif hasattr(value, "tobytes"):
        value[...] = numpy.frombuffer(before[2], before[1]).reshape(before[0])
    else:
        _put_attributes(value, before)


def _refill(value: Any, contents: Any) -> None:
    if isinstance(value, list | deque):
        value.extend(contents)
    else:
        value.update(contents)


def _put_attributes(value: Any, before: dict[str, Any]) -> None:
    now = contents_of(value)
    for key in dict.fromkeys([*before, *now]):
        was = before.get(key, ABSENT)
        if _same(was, now.get(key, ABSENT)):
            continue
        table = value.variables if isinstance(value, _Variables) else None
        if table is None and not isinstance(value, type) and key not in _slots(type(value)):
            table = vars(value)
        if table is not None:
            table.pop(key, None) if was is ABSENT else table.__setitem__(key, was)
        else:
            owner = type if isinstance(value, type) else object  # past methods of the class's own
            owner.__delattr__(value, key) if was is ABSENT else owner.__setattr__(value, key, was)


def inside(name: str, value: Any, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """What an object holds that code can get at by these names."""
    if isinstance(value, dict):
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items())[:_MOST_ITEMS])
    elif isinstance(value, (list, tuple, deque)):
        yield from ((f"{name}[{place}]", one) for place, one in enumerate(list(value)[:_MOST_ITEMS]))
    elif isinstance(value, CellType):
        contents = contents_of(value)
        yield name, contents
    elif isinstance(value, MethodType):
        yield name, value.__self__
    elif isinstance(value, FunctionType):
        if not is_library(value.__code__):
            yield from zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        return
    if not isinstance(value, (CellType, FunctionType, MethodType, type)) and not _is_closed(type(value)):
        yield f"type({name})", type(value)
    if isinstance(value, torch.nn.Module):
        yield from ((f"{name}.{key}", one) for key, one in value._modules.items() if key in names)
    found = _attributes(value) or {}
    yield from ((f"{name}.{key}", one) for key, one in found.items() if key in names)


def _same(before: Any, now: Any) -> bool:
    """Whether two copies hold the same: plain values by their bits, other objects by what they are."""
    if before is now:
        return True
    if type(before) is not type(now):
        return False
    if isinstance(before, _PLAIN):
        return before == now if not isinstance(before, (float, complex)) else repr(before) == repr(now)
    if isinstance(before, dict):
        return list(map(_key, before)) == list(map(_key, now)) and all(_same(v, now[k]) for k, v in before.items())
    if isinstance(before, numpy.ndarray):
        return bool((before == now).all())
    if isinstance(before, (list, tuple)):
        return len(before) == len(now) and all(map(_same, before, now))
    return False


def _key(key: Any) -> Any:
    return (type(key), key) if isinstance(key, _PLAIN) else id(key)


def _in_words(kept: Kept) -> Iterator[Change]:
    before, now = kept.before, contents_of(kept.value)
    if isinstance(before, dict) and isinstance(now, dict):
        for key in dict.fromkeys([*before, *now]):
            was, is_now = before.get(key, ABSENT), now.get(key, ABSENT)
            if not _same(was, is_now):
                yield Change(f"{kept.name}.{key}".strip("."), f"{_was(was, is_now)} at {_line(kept.code, key)}")
    elif isinstance(kept.value, _CONTAINERS):
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
class Names:
    """The names in code, and those of variables of its module that it assigns."""

    all: frozenset[str]
    assigned: frozenset[str]


_known: dict[CodeType, Names | None] = {}
_UNKNOWN = compile("", "<a function of C>", "exec")

#: Instructions that change something beside variables of the function itself.
_WRITES = ("STORE_ATTR", "STORE_SUBSCR", "STORE_SLICE", "DELETE_ATTR", "DELETE_SUBSCR", "STORE_DEREF", "STORE_GLOBAL")
_IN_PLACE = 13  # operators of BINARY_OP from here on: `+=` and its like


def _names_to_follow(code: CodeType) -> Names | None:
    """The names in code of the user's; None if it changes and calls nothing."""
    if code not in _known:
        is_own = is_users(code) and not is_installed(code) and code.co_name != "<module>"
        found = list(dis.get_instructions(code)) if is_own else []
        assigned = frozenset(one.argval for one in found if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"))
        _known[code] = Names(frozenset(code.co_names), assigned) if any(map(_can_change, found)) else None
    return _known[code]


def _can_change(one: dis.Instruction) -> bool:
    is_in_place = one.opname == "BINARY_OP" and (one.arg or 0) >= _IN_PLACE
    return is_in_place or one.opname in _WRITES or one.opname.startswith(("CALL", "DELETE_GLOBAL"))
