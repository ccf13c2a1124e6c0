"""Nodes: what a function read of Python's objects, so that it can be compared with what is there now.

A node stands for one object. Values are compared by type and bits; what holds others is compared by what it holds, and
then followed: a list that was replaced by an equal one is watched from then on. A node that others also lead to, or
whose place in memory a call relies on, is pinned: it stands for that very object.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from types import CodeType, FunctionType
from typing import Any

import numpy
import torch
from torch import fx

from foregrad.runtime.guards.reasons import text_of

#: Stands for what is not there.
ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()

#: Is no object's value: it is always looked at.
_ANEW = object()


class ReadNode:
    """One object that was read, known to people by its name. `live` is the object as it was last seen."""

    __slots__ = ("live", "name")

    def __init__(self, name: str, live: Any) -> None:
        self.name = name
        self.live = live

    def match(self, value: Any) -> str | None:
        """Why another object is not as good as the one that was read; None if it is."""
        if _text(value) == _text(self.live):
            return f"{self.name} is another {type(self.live).__name__}"
        return self.differs(value)

    def differs(self, value: Any) -> str:
        return f"{self.name} was {self.words()}, is {_text(value)}"

    def words(self) -> str:
        return _text(self.live)


class Same(ReadNode):
    """An object that must be the very same; what stands in for it while a function is recorded is as good."""

    __slots__ = ()

    def __init__(self, name: str, live: Any) -> None:
        super().__init__(name, original_of(live))

    def match(self, value: Any) -> str | None:
        return None if original_of(value) is self.live else super().match(value)


class Plain(ReadNode):
    """A value that must be of the same type, and the same to the last bit."""

    __slots__ = ()

    def match(self, value: Any) -> str | None:
        if type(value) is type(self.live) and exact(value) == exact(self.live):
            self.live = value
            return None
        return self.differs(value)


class TensorNode(ReadNode):
    """A tensor: an input, which is checked as such, or one that the program does not take, which must look the same."""

    __slots__ = ("look",)

    def __init__(self, name: str, tensor: torch.Tensor, is_input: bool) -> None:
        super().__init__(name, _ANEW)
        self.look = None if is_input else _look(tensor)

    def match(self, value: Any) -> str | None:
        if isinstance(value, torch.Tensor) and (self.look is None or _look(value) == self.look):
            return None
        return self.differs(value)

    def words(self) -> str:
        return "a tensor" if self.look is None else f"a tensor {tuple(self.look[1])}"


class ArrayNode(ReadNode):
    """An array of NumPy's, or another piece of memory, with all that it holds."""

    __slots__ = ("contents",)

    def __init__(self, name: str, array: Any) -> None:
        super().__init__(name, array)
        self.contents = _array(array)

    def is_same(self) -> bool:
        return _array(self.live) == self.contents

    def update(self, value: Any) -> str | None:
        return self.match(value)

    def match(self, value: Any) -> str | None:
        if type(value) is type(self.live) and _array(value) == self.contents:
            self.live = value
            return None
        return f"{self.name} has other contents"


class HolderNode(ReadNode):
    """An object that holds others."""

    __slots__ = ("children", "is_pinned", "on_move")

    def __init__(self, name: str, live: Any) -> None:
        super().__init__(name, live)
        self.children: list[ReadNode] = []
        self.is_pinned = False
        self.on_move: Callable[[HolderNode], None] | None = None  # told when it stands for another object

    def read(self, value: Any) -> list[Any] | str:
        """What the object holds, one for each child; or why it is built otherwise."""
        raise NotImplementedError

    def match(self, value: Any) -> str | None:
        if self.is_pinned or type(value) is not type(self.live):
            return super().match(value)
        return self.update(value)

    def update(self, value: Any) -> str | None:
        """Take an object with its present contents; why not, if these differ."""
        before = self.live
        self._move(value)  # first: what changes from now on is seen
        why = self._compare(value)
        if why is not None:
            self._move(before)
        return why

    def _move(self, value: Any) -> None:
        if value is not self.live:
            self.live = value
            if self.on_move is not None:
                self.on_move(self)

    def _compare(self, value: Any) -> str | None:
        found = self.read(value)
        if isinstance(found, str):
            return found
        for child, one in zip(self.children, found, strict=True):
            if one is not child.live:
                why = child.match(original_of(one))
                if why is not None:
                    return why
        return None


class Items(HolderNode):
    """The items of a list, tuple, set or deque, in their order."""

    __slots__ = ()

    def read(self, value: Any) -> list[Any] | str:
        found = list(value)
        return found if len(found) == len(self.children) else self.differs(value)

    def is_same(self) -> bool:
        live = self.live
        return len(live) == len(self.children) and all(map(operator.is_, live, [child.live for child in self.children]))

    def words(self) -> str:
        return text_of([child.live for child in self.children])


class Entries(HolderNode):
    """The entries of a dict, in their order."""

    __slots__ = ("keys",)

    def __init__(self, name: str, live: Any) -> None:
        super().__init__(name, live)
        self.keys = list(live)

    def read(self, value: Any) -> list[Any] | str:
        found = list(value)
        same = len(found) == len(self.keys) and all(map(_is_same_key, found, self.keys))
        return list(value.values()) if same else self.differs(value)

    def is_same(self) -> bool:
        found = self.read(self.live)
        return not isinstance(found, str) and all(map(operator.is_, found, [child.live for child in self.children]))

    def words(self) -> str:
        return text_of(dict(zip(map(str, self.keys), [child.live for child in self.children], strict=False)))


class Hooks(Entries):
    """Hooks in their order. The numbers under which they are kept are those of a process."""

    __slots__ = ()


class SomeEntries(Entries):
    """Those entries of a dict that count, in their order."""

    __slots__ = ("counts",)

    def __init__(self, name: str, live: dict[Any, Any], counts: Callable[[Any, Any], bool]) -> None:
        super().__init__(name, live)
        self.counts = counts
        self.keys = [key for key, one in live.items() if counts(key, one)]

    def read(self, value: Any) -> list[Any] | str:
        return super().read({key: one for key, one in list(value.items()) if self.counts(key, one)})


class AttributesNode(HolderNode):
    """Entries of a dict that go by some names: attributes of an object, or variables of a module."""

    __slots__ = ("dunders", "home", "keys", "leaves_out", "names")

    def __init__(
        self,
        name: str,
        live: dict[str, Any],
        names: frozenset[str] | None,
        *,
        dunders: bool = False,
        leaves_out: frozenset[str] = frozenset(),
        home: str = "",
    ) -> None:
        super().__init__(name, live)
        self.home = home  # the module, where these are its variables, or entries of a class in it
        self.leaves_out = NOT_READ | leaves_out
        self.names = names  # all, if None
        self.dunders = dunders  # whether names that Python asks for by itself count
        self.keys = sorted(self.present(live))

    def present(self, entries: dict[str, Any]) -> set[str]:
        if self.names is None:
            return {key for key in entries if isinstance(key, str)} - self.leaves_out
        if len(self.names) < len(entries):
            found = {key for key in self.names if key in entries}
        else:
            found = set(self.names.intersection(entries))
        if self.dunders:
            found |= {key for key in entries if key.startswith("__") and not isinstance(entries[key], _DATA)}
        return found - self.leaves_out

    def read(self, value: Any) -> list[Any] | str:
        present = self.present(value)
        if len(present) == len(self.keys) and present.issuperset(self.keys):
            return [value[key] for key in self.keys]
        there = next((key for key in self.keys if key not in present), None)
        if there is not None:
            return f"{self.inner(there)} was {self.children[self.keys.index(there)].words()}, is not there"
        added = min(present.difference(self.keys))
        return f"{self.inner(added)} was not there, is {_text(value[added])}"

    def is_same(self) -> bool:
        found = self.read(self.live)
        return not isinstance(found, str) and all(map(operator.is_, found, [child.live for child in self.children]))

    def inner(self, key: str) -> str:
        return f"{self.name}.{key}" if self.name else key


class Fields(HolderNode):
    """What an object holds by itself: its type, slots, the parts of a function, the contents of a cell."""

    __slots__ = ("getters",)

    def __init__(self, name: str, live: Any, getters: Iterable[Callable[[Any], Any]]) -> None:
        super().__init__(name, live)
        self.getters = tuple(getters)

    def read(self, value: Any) -> list[Any] | str:
        return [read_field(getter, value) for getter in self.getters]


class Pinned(Fields):
    """An object that must be the very same, with what it holds."""

    __slots__ = ()

    def match(self, value: Any) -> str | None:
        return ReadNode.match(self, value)


#: What Python asks a class for by itself is none of these.
_DATA = (str, list, tuple, dict, set, frozenset)

#: Entries of dicts that say nothing about what an object does.
NOT_READ = frozenset(
    {
        "__builtins__",
        "__doc__",
        "__module__",
        "__qualname__",
        "__annotations__",
        "__weakref__",
        "__dict__",
        "__abstractmethods__",
        "__parameters__",
        "__orig_bases__",
        "__firstlineno__",
        "__static_attributes__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
        "__loader__",
        "__spec__",
        "__file__",
        "__cached__",
        "__path__",
        "__package__",
        "__name__",
        "__warningregistry__",
        "__slots__",
        "__slotnames__",
        "__match_args__",
        "__dataclass_fields__",
        "__dataclass_params__",
        "__subclasshook__",
        "__signature__",
        "default_generator",  # that of torch.random, which a recording replaces
        "__dynamo_disable",  # how torch keeps its own compiler out of a function, noted when that is first loaded
        "_torchdynamo_disable",
        "_torchdynamo_orig_callable",
        "_torchdynamo_wrapper_id",
    }
)


def original_of(value: Any) -> Any:
    """What a function stands in for while some thread records, or traces by torch's own means."""
    while type(value) is FunctionType and (vars(value).get("stands_in") or value.__code__ in _OF_FX):
        value = vars(value)["__wrapped__"]
    return value


#: Methods of `nn.Module` while `torch.fx` traces in some thread.
_OF_FX = {
    code for code in fx.Tracer.trace.__code__.co_consts if isinstance(code, CodeType) and "wrapper" in code.co_name
}


def read_field(getter: Callable[[Any], Any], value: Any) -> Any:
    try:
        return getter(value)
    except (AttributeError, ValueError):
        return ABSENT


#: Values of which the bits count, and that compare equal to others: 2 and 2.0, 0.0 and -0.0, NaN and itself.
_BY_TEXT = (float, complex, range)


def exact(value: Any) -> Any:
    """What tells a value from others of its type."""
    if isinstance(value, _BY_TEXT):
        return repr(value)
    return value.tobytes() if isinstance(value, numpy.generic) else value


def _is_same_key(key: Any, before: Any) -> bool:
    if key is before:
        return True
    return type(key) is type(before) and isinstance(key, (str, int, float, bytes)) and exact(key) == exact(before)


def _look(tensor: torch.Tensor) -> tuple[Any, ...]:
    return type(tensor), tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _array(array: Any) -> Any:
    if not isinstance(array, numpy.ndarray):
        return bytes(array)
    mask = numpy.asarray(array.mask).tobytes() if isinstance(array, numpy.ma.MaskedArray) else b""
    return array.dtype, array.shape, array.tobytes(), mask


def _text(value: Any) -> str:
    return "not there" if value is ABSENT else text_of(value)
