"""Result forms: results in which objects of the caller's come back, and what a call changes in its arguments.

A call gives a flat list of values. A form says how its result is made of these, of what the call was given, and of
objects that are kept elsewhere. `ResultForm.apply` makes it, and changes the arguments as the function has changed its
copies.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from enum import Enum
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.plain_objects import held_by, hold, is_plain, let_go
from foregrad.record.python.container_arguments import (
    ContainerArguments,
    Contents,
    Path,
    at,
    is_same,
    named,
    path_text,
    refill,
)
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import expression_of
from foregrad.torch_private.pytree import make_node, node_of


@dataclass(frozen=True)
class Value:
    """One of the values that a call gives."""

    place: int


@dataclass(frozen=True)
class Given:
    """What the call was given at a place."""

    path: Path


@dataclass(frozen=True)
class MadeBefore:
    """What was made for an earlier place of the result."""

    number: int


@dataclass(frozen=True, eq=False)
class Kept:
    """A list or dict that was there before the call; if no guard watches it, one that is made anew."""

    value: Any
    otherwise: New

    @property
    def number(self) -> int:
        return self.otherwise.number


@dataclass(frozen=True, eq=False)
class New:
    """A container or object that each call makes. `names` are attributes of an object, or keys of a dict."""

    number: int
    kind: type
    parts: tuple[Form, ...]
    names: tuple[Any, ...] | None
    context: Any = None


Form = Value | Given | MadeBefore | Kept | New


@dataclass(frozen=True, eq=False)
class Edit:
    """New contents for something among the arguments: all items, and the attributes that differ."""

    path: Path
    items: tuple[Form, ...] | None
    keys: tuple[Any, ...] | None
    attributes: tuple[tuple[str, Form], ...]
    removed: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class ResultForm:
    """How a result is made of the values of a call, and what the call changes in its arguments."""

    result: Form
    edits: tuple[Edit, ...]
    visits: tuple[tuple[Path, Path], ...]  # places that held one object, by the first of them

    @property
    def why_special(self) -> str:
        """What it does that a plain tree of results does not."""
        if self.edits:
            return "it changes what it is given"
        return "it returns what it is given, what was there before, or one object at two places"

    def fits(self, args: Any, kwargs: Any) -> bool:
        """Whether the arguments have the same objects at several places as those of the capture."""
        given, first = named(args, kwargs), dict[int, Path]()
        try:
            found = [(at(given, path), expected) for path, expected in self.visits]  # held, so that ids stay theirs
            pairs = zip(self.visits, found, strict=True)
            return all(first.setdefault(id(one), path) == expected for (path, _), (one, expected) in pairs)
        except (KeyError, IndexError, TypeError, AttributeError):
            return False

    def apply(self, args: Any, kwargs: Any, values: Any) -> Any:
        """The result of a call, whose arguments are changed."""
        call = _Making(named(args, kwargs), values)
        result = call.made(self.result)
        todo = [
            (
                at(call.given, edit.path),
                edit,
                None if edit.items is None else list(map(call.made, edit.items)),
                {name: call.made(form) for name, form in edit.attributes},
            )
            for edit in self.edits
        ]
        for target, edit, items, attributes in todo:
            if items is not None:
                refill(target, items, edit.keys)
            let_go(target, edit.removed)
            hold(target, attributes)
        return result


class _Making:
    """Makes what forms stand for, in one call."""

    def __init__(self, given: dict[Any, Any], values: Any) -> None:
        self.given = given
        self._values = values
        self._made: dict[int, Any] = {}

    def made(self, form: Form) -> Any:
        if isinstance(form, Value):
            return self._values[form.place]
        if isinstance(form, Given):
            return at(self.given, form.path)
        if isinstance(form, MadeBefore):
            return self._made[form.number]
        if isinstance(form, Kept):
            self._made[form.number] = form.value
            return form.value
        return self._new(form)

    def _new(self, form: New) -> Any:
        one: Any
        if form.kind in (list, deque):
            one = self._made[form.number] = form.kind() if form.kind is list else deque(maxlen=form.context)
            one.extend(map(self.made, form.parts))
        elif form.kind in (dict, OrderedDict):
            one = self._made[form.number] = form.kind()
            one.update(zip(form.names or (), map(self.made, form.parts), strict=True))
        elif form.names is not None:
            one = self._made[form.number] = object.__new__(form.kind)
            hold(one, dict(zip(form.names, map(self.made, form.parts), strict=True)))
        else:
            one = self._made[form.number] = make_node(form.kind, list(map(self.made, form.parts)), form.context)
        return one


# -- from what the function has returned --------------------------------------------------------------------


class FormMaker:
    """Makes the form of a result and of what has changed in the arguments; `leaves` are the values, by name."""

    def __init__(
        self, arguments: ContainerArguments, is_new: Callable[[Any], bool], is_ghost: Callable[[Any], bool], line: str
    ) -> None:
        self.leaves: list[tuple[str, Any]] = []
        self.kept: list[Any] = []
        self.is_special = False  # whether a plain tree would lose something
        self._arguments, self._is_new, self._is_ghost, self._line = arguments, is_new, is_ghost, line
        self._numbers: dict[int, int] = {}
        self._finished: set[int] = set()
        self._alive: list[Any] = []

    def made(self, result: Any) -> ResultForm:
        form = self._form(result, "result")
        for part in self._arguments.parts:
            if type(part.copy) is not part.kind:
                name = path_text(part.path)
                raise CaptureError(
                    f"the function gives `{name}`, which it was given, another class.\n{self._line}\nDo it outside."
                )
        changed = list(self._arguments.changed())
        for part, _ in changed:
            if self._arguments.is_made_anew(part.path):
                raise CaptureError(
                    f"the function changes `{path_text(part.path)}`, which the container around it makes anew whenever "
                    f"it is taken apart.\n{self._line}\nDo it outside."
                )
        edits = tuple(self._edit(path_text(part.path), part.path, part.before, now) for part, now in changed)
        self.is_special |= bool(edits)
        return ResultForm(form, edits, tuple(self._arguments.visits))

    def _edit(self, name: str, path: Path, before: Contents, now: Contents) -> Edit:
        refill = before.keys != now.keys or len(before.items) != len(now.items)
        refill = refill or not all(map(is_same, before.items, now.items))
        if now.keys is not None:
            old = set(map(id, before.keys or ()))
            self._check_keys("stores", [key for key in now.keys if id(key) not in old])
        items: tuple[Form, ...] | None = None
        if refill:
            shown = now.keys if now.keys is not None else range(len(now.items))
            items = tuple(self._form(one, f"{name}[{key!r}]") for key, one in zip(shown, now.items, strict=True))
        was, now_held = before.attributes, now.attributes
        stayed = [key for key in was if key in now_held]
        is_reordered = stayed != list(now_held)[: len(stayed)]
        removed = tuple(was) if is_reordered else tuple(key for key in was if key not in now_held)
        new = [key for key, one in now_held.items() if key in removed or key not in was or not is_same(was[key], one)]
        attributes = tuple((key, self._form(now_held[key], f"{name}.{key}")) for key in new)
        keys = None if now.keys is None else tuple(map(_plain_key, now.keys))
        return Edit(path, items, keys, attributes, removed)

    def _form(self, value: Any, name: str) -> Form:
        if isinstance(value, (torch.Tensor, torch.Size)):
            return self._leaf(value, name)
        if id(value) in self._arguments.places and not isinstance(value, tuple):
            self.is_special = True
            return Given(self._arguments.places[id(value)])
        if id(value) in self._numbers:
            return self._again(value, name)
        node = node_of(value)
        if node is None:
            return self._object(value, name) if is_plain(value) else self._leaf(value, name)
        if isinstance(value, dict):
            self._check_keys("returns", list(value))
        number = self._number(value)
        names = tuple(map(_plain_key, value)) if type(value) in (dict, OrderedDict) else None
        self.is_special |= names is not None and any(map(_has_symbol, value))
        shown: Any = names if names is not None else range(len(node.children))
        parts = tuple(self._form(one, f"{name}[{key!r}]") for one, key in zip(node.children, shown, strict=True))
        made = New(number, node.kind, parts, names, node.context)
        self._finished.add(number)
        if type(value) in (list, dict) and not self._is_of_the_call(value):
            self.kept.append(value)
            return Kept(value, made)
        return made

    def _is_of_the_call(self, value: Any) -> bool:
        """Whether a list or dict was made by the function, as far as its age tells; of an empty dict, or one of plain
        values, Python knows no age."""
        return gc.is_tracked(value) and self._is_new(value)

    def _again(self, value: Any, name: str) -> Form:
        number = self._numbers[id(value)]
        can_wait = type(value) in (list, dict, OrderedDict, deque) or is_plain(value)
        if number not in self._finished and not can_wait:
            raise CaptureError(
                f"the function returns a {type(value).__name__} as {name} that leads to itself.\n{self._line}\nReturn "
                "what it holds."
            )
        self.is_special = True
        return MadeBefore(number)

    def _object(self, value: Any, name: str) -> Form:
        if not self._is_new(value) or self._is_new(type(value)):
            return self._leaf(value, name)
        start, number, held = len(self.leaves), self._number(value), held_by(value)
        parts = tuple(self._form(one, f"{name}.{key}") for key, one in held.items())
        self._finished.add(number)
        has_ghost = any(self._is_ghost(one) for _, one in self.leaves[start:])
        if not (has_ghost or is_dataclass(value) or any(map(_is_of_arguments, parts))):
            del self.leaves[start:]
            return self._leaf(value, name)
        return New(number, type(value), parts, tuple(held))

    def _number(self, value: Any) -> int:
        """A number for what is made, to be found again; of tuples, which are all alike, nobody asks for it."""
        self._alive.append(value)
        if not isinstance(value, tuple):
            self._numbers[id(value)] = len(self._alive)
        return len(self._alive)

    def _leaf(self, value: Any, name: str) -> Value:
        self.leaves.append((name, value))
        return Value(len(self.leaves) - 1)

    def _check_keys(self, what: str, keys: list[Any]) -> None:
        """Tensors and new objects may be values of a dict, and no keys."""
        for key in keys:
            parts = key if isinstance(key, tuple) else (key,)
            if any(item_of(part) is not None for part in parts):
                raise CaptureError(
                    f"the function {what} a dict with a number of `.item()` as a key.\n{self._line}\nUse `float()` "
                    "of it."
                )
            if not all(isinstance(part, (*_KEYS, type, Enum)) for part in parts):
                raise CaptureError(
                    f"the function {what} a dict with a {type(key).__name__} as a key.\n{self._line}\nUse strings or "
                    "numbers."
                )


_KEYS = (int, float, bool, str, complex, type(None), torch.dtype, torch.device, torch.layout, torch.Size, bytes)


def _plain_key(key: Any) -> Any:
    """A key of a dict without numbers that vary: the dict had to know their values."""
    if type(key) is tuple:
        return tuple(map(_plain_key, key))
    expression = expression_of(key)
    return key if expression is None else expression.value


def _has_symbol(key: Any) -> bool:
    return any(map(_has_symbol, key)) if type(key) is tuple else expression_of(key) is not None


def _is_of_arguments(form: Form) -> bool:
    return isinstance(form, (Given, MadeBefore))


def settled(form: ResultForm, watched: frozenset[int]) -> ResultForm:
    """The form without what was there before and is watched by no guard: it is made anew."""
    edits = [
        Edit(
            edit.path,
            None if edit.items is None else tuple(_settled(one, watched) for one in edit.items),
            edit.keys,
            tuple((name, _settled(one, watched)) for name, one in edit.attributes),
            edit.removed,
        )
        for edit in form.edits
    ]
    return ResultForm(_settled(form.result, watched), tuple(edits), form.visits)


def _settled(form: Form, watched: frozenset[int]) -> Form:
    if isinstance(form, Kept):
        return form if id(form.value) in watched else _settled(form.otherwise, watched)
    if isinstance(form, New):
        return New(form.number, form.kind, tuple(_settled(p, watched) for p in form.parts), form.names, form.context)
    return form
