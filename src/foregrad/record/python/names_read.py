"""Names: what code can ask for by name: globals, and attributes of whatever it gets hold of."""

from __future__ import annotations

import dis
import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from string import Formatter
from types import CodeType
from typing import Any


@dataclass(frozen=True)
class Names:
    """The names in one code object."""

    globals: frozenset[str]
    attributes: frozenset[str]  # and strings that may be the name of one
    computes: bool  # it asks for attributes whose names it computes
    looks_at_globals: bool  # it asks for globals whose names it computes
    used: frozenset[str] = frozenset()  # of globals and attributes, unless all it asks is whether something is in them
    imports: tuple[Import, ...] = ()
    imports_by_computed_name: bool = False


@dataclass(frozen=True)
class Import:
    """An `import` that code does when it runs: `from ..data import load` has the level 2."""

    module: str
    level: int
    names: tuple[str, ...]
    escapes: bool  # the code does more with what it gets than ask for attributes

    def modules(self, package: str) -> Iterator[str]:
        """Full names of the modules that code of this package may get so."""
        base = package.rsplit(".", self.level - 1)[0] if self.level else ""
        full = ".".join(part for part in (base, self.module) if part)
        yield full
        yield from (f"{full}.{name}" for name in self.names)
        if not self.names:
            yield full.partition(".")[0]


_known: dict[int, tuple[CodeType, Names]] = {}  # code is kept alive, so that its id stays its own


def names_in(code: CodeType) -> Names:
    """The names in code, found once in a process."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = (code, _find(code))
    return known[1]


_NOTHING = ("EXTENDED_ARG", "NOP", "CACHE", "PRECALL")
_GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "IMPORT_FROM")

#: Through these every attribute can be read.
_ALL_ATTRIBUTES = frozenset({"__dict__", "__getattribute__", "__reduce_ex__", "__getstate__", "__slots__"})
_ALL_OF_IT = frozenset({"vars", "dir", "eval", "exec"})
_TAKE_NAMES = frozenset({"getattr", "hasattr"})

#: Their second argument is a name that other code has asked for.
_ASKED = ("__getattr__", "__getattribute__")


def _find(code: CodeType) -> Names:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in _NOTHING]
    read = {i.argval for i in instructions if i.opname in _GLOBALS}
    asked = {i.argval for i in instructions if i.opname in _ATTRIBUTES}
    called = tuple(_given_to_import(instructions))
    imported = {i.argval.rpartition(".")[2] for i in instructions if i.opname == "IMPORT_NAME"}
    texts = [text for text in _strings(code.co_consts) if len(text) < 200]
    strings = {part for text in texts for part in (*text.split("."), *_fields(text))}
    return Names(
        globals=frozenset(read),
        attributes=frozenset(asked | imported | {text for text in strings if text.isidentifier()}),
        computes=bool(asked & _ALL_ATTRIBUTES or read & _ALL_OF_IT)
        or _computes_names(code, instructions)
        or _asks_by_place(instructions),
        looks_at_globals=bool(read & {"globals", "locals", "vars", "eval", "exec"}),
        used=frozenset(strings.union(_used(instructions))),
        imports=(*_statements(instructions), *(Import(name, 0, (), True) for name in called if name)),
        imports_by_computed_name=None in called,
    )


def _statements(instructions: list[dis.Instruction]) -> Iterator[Import]:
    """The two constants before an import are its level and the names that it asks for."""
    escaping = _escaping(instructions)
    for place, one in enumerate(instructions):
        if one.opname == "IMPORT_NAME":
            level, names = (before.argval for before in instructions[place - 2 : place])
            stores = itertools.takewhile(lambda i: i.opname in _BINDS, instructions[place + 1 :])
            escapes = any(i.opname in _STORES and (i.opname != "STORE_FAST" or i.argval in escaping) for i in stores)
            yield Import(one.argval, level, tuple(names or ()), escapes)


_STORES = ("STORE_FAST", "STORE_GLOBAL", "STORE_NAME", "STORE_DEREF")

#: What follows on an import: its results are taken apart, and bound to names.
_BINDS = ("IMPORT_FROM", "POP_TOP", "SWAP", *_STORES)


def _escaping(instructions: list[dis.Instruction]) -> frozenset[str]:
    """Variables whose values code does more with than ask them for attributes."""
    pairs = itertools.pairwise(instructions)
    return frozenset(
        one.argval
        for one, after in pairs
        if one.opname.startswith("LOAD_FAST") and after.opname not in ("LOAD_ATTR", "LOAD_METHOD")
    )


def _given_to_import(instructions: list[dis.Instruction]) -> Iterator[str | None]:
    """The names that `__import__` is given first; None for what is computed."""
    for one, after in itertools.pairwise(instructions):
        if one.opname in _GLOBALS and one.argval == "__import__":
            is_name = after.opname == "LOAD_CONST" and isinstance(after.argval, str)
            yield after.argval if is_name else None


def _used(instructions: list[dis.Instruction]) -> Iterator[str]:
    """Names whose values are used for more than to ask what is in them."""
    for one, after in zip(instructions, [*instructions[1:], None], strict=True):
        if one.opname in (*_GLOBALS, *_ATTRIBUTES) and (after is None or not _asks_what_is_in(after)):
            yield one.argval


def _asks_what_is_in(instruction: dis.Instruction) -> bool:
    return instruction.opname == "CONTAINS_OP" or (
        instruction.opname in _ATTRIBUTES and instruction.argval in ("add", "discard", "remove", "clear")
    )


def _strings(constants: Any) -> Iterator[str]:
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            yield from _strings(one)


def _fields(text: str) -> Iterator[str]:
    """What `"{0.scale}".format(config)` asks for."""
    if "{" in text:
        with suppress(ValueError):  # it is no text of that kind
            for _, name, _, _ in Formatter().parse(text):
                yield from (name or "").split(".")[1:]


def _asks_by_place(instructions: list[dis.Instruction]) -> bool:
    """Whether code asks for attributes whose names stand elsewhere: `case Config(scale)`, a text that it formats."""
    pairs = zip([None, *instructions], instructions, strict=False)
    return any(
        (one.opname == "MATCH_CLASS" and one.arg)
        or (one.opname in _ATTRIBUTES and one.argval in _FORMATS and (before is None or before.opname != "LOAD_CONST"))
        for before, one in pairs
    )


_FORMATS = ("format", "format_map", "vformat")


def _computes_names(code: CodeType, instructions: list[dis.Instruction]) -> bool:
    """Whether a name given to `getattr` is neither a string in the code nor one that other code has asked for."""
    asked = code.co_varnames[1:2] if code.co_name in _ASKED and code.co_argcount > 1 else ()
    places = [p for p, i in enumerate(instructions) if i.opname in _GLOBALS and i.argval in _TAKE_NAMES]
    return any(not _is_known(_second_argument(instructions[place:]), asked) for place in places)


def _is_known(instruction: dis.Instruction | None, asked: tuple[str, ...]) -> bool:
    if instruction is None:
        return False
    if instruction.opname == "LOAD_CONST":
        return isinstance(instruction.argval, str)
    return instruction.opname.startswith("LOAD_FAST") and instruction.argval in asked


def _second_argument(rest: list[dis.Instruction]) -> dis.Instruction | None:
    """What loads the second argument of the call for which the first instruction loads the function, if just one
    instruction does, and a plain value comes after it at most."""
    call = _call_of(rest)
    if call is None:
        return None
    last = call - 1
    if rest[call].arg == 3:
        while rest[last].opname == "LOAD_ATTR":
            last -= 1
        if not (rest[last].opname in _PLAIN_LOADS or (rest[last].opname.startswith("BUILD_") and not rest[last].arg)):
            return None
        last -= 1
    return rest[last] if rest[call].arg in (2, 3) else None


_PLAIN_LOADS = ("LOAD_CONST", "LOAD_FAST", "LOAD_DEREF", "LOAD_GLOBAL")


def _call_of(rest: list[dis.Instruction]) -> int | None:
    """The place of the call of what the first instruction loads; None behind a jump."""
    depth = 0  # of what lies on the stack above it
    for place, one in enumerate(rest[1:], 1):
        if one.opname == "CALL" and depth == one.arg:
            return place
        if one.opcode in dis.hasjrel or one.opcode in dis.hasjabs:
            return None
        depth += _effect(one)
    return None


def _effect(instruction: dis.Instruction) -> int:
    """By how much an instruction makes the stack grow."""
    if instruction.opname == "CALL":  # in Python 3.11 together with the PRECALL before it
        return -1 - (instruction.arg or 0)
    return dis.stack_effect(instruction.opcode, instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None)
