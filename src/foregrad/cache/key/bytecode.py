"""Bytecode: what a function's code does, without the names of its variables, and what it reaches for by name.

Comments, blank lines, docstrings, line numbers and file names are no part of it. The names of parameters are: a caller
may use them.
"""

from __future__ import annotations

import dis
import hashlib
import inspect
import linecache
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from foregrad.cache.key.constants import constant_text
from foregrad.cache.key.unhashable_reads import HIDDEN_ATTRIBUTES

#: Lines of a function that a description shows.
_MOST_LINES = 60


@dataclass(frozen=True)
class Use:
    """A name that code reads, and the attributes that it asks of it at once: `torch.nn.functional`, in line 12."""

    kind: str  # "global", "closure" or "import"
    name: str
    attributes: tuple[str, ...]
    line: int


@dataclass(frozen=True)
class Facts:
    """What is known of code by itself."""

    digest: str
    uses: tuple[Use, ...]
    names: frozenset[str]  # every name that it asks of something
    asks: tuple[tuple[str, int], ...]  # what it asks of objects that no key can see, and the line
    is_dynamic: bool  # it asks for attributes whose names are computed
    source: str


_known: dict[int, tuple[CodeType, Facts]] = {}  # code is kept alive, so that its id stays its own


def facts_of(code: CodeType) -> Facts:
    """The facts of code, found once in a process."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = (code, _find(code))
    return known[1]


_READS = {
    "LOAD_GLOBAL": "global",
    "LOAD_NAME": "global",
    "LOAD_DEREF": "closure",
    "LOAD_CLASSDEREF": "closure",
    "LOAD_FROM_DICT_OR_DEREF": "closure",
    "LOAD_FROM_DICT_OR_GLOBALS": "global",
}
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")


def _find(code: CodeType) -> Facts:
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "NOP", "RESUME")]
    inner = [facts_of(const) for const in code.co_consts if isinstance(const, CodeType)]
    uses = [*_uses(code, instructions), *(use for facts in inner for use in facts.uses)]
    strings = {part for s in _strings(code.co_consts) if len(s) < 200 for part in s.split(".") if part.isidentifier()}
    asks = [(i.argval, line) for i, line in _with_lines(code, instructions) if _is_hidden(i)]
    return Facts(
        digest=hashlib.sha256(_text(code, instructions).encode()).hexdigest(),
        uses=tuple(dict.fromkeys(uses)),
        names=frozenset(code.co_names).union(strings, *(facts.names for facts in inner)),
        asks=(*asks, *(ask for facts in inner for ask in facts.asks)),
        is_dynamic=_asks_for_computed_names(instructions) or any(facts.is_dynamic for facts in inner),
        source=_source(code),
    )


# -- what it does -------------------------------------------------------------------------------------------


def _text(code: CodeType, instructions: list[dis.Instruction]) -> str:
    """Code in full. Variables go by their places; those of a class body are found by their names."""
    num_named = code.co_argcount + code.co_kwonlyargcount
    num_named += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    is_by_place = bool(code.co_flags & inspect.CO_OPTIMIZED)
    parameters = code.co_varnames[:num_named]
    others = () if is_by_place else (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_nlocals)
    shape = (*counts, len(code.co_cellvars), len(code.co_freevars), parameters, others)
    lines = [repr(shape), code.co_exceptiontable.hex()]
    for i in instructions:
        lines.append(f"{i.opname} {_argument(code, i)}")
    return "\n".join(lines)


def _argument(code: CodeType, instruction: dis.Instruction) -> str:
    if instruction.opcode in dis.hasconst:
        return constant_text(code.co_consts[instruction.arg or 0], lambda inner: facts_of(inner).digest)
    if instruction.opcode in dis.hasname:
        return f"{instruction.argval} {instruction.arg & 3 if instruction.arg is not None else 0}"
    return str(instruction.arg)


# -- what it reaches for ------------------------------------------------------------------------------------


def _with_lines(code: CodeType, instructions: list[dis.Instruction]) -> Iterator[tuple[dis.Instruction, int]]:
    line = code.co_firstlineno
    for one in instructions:
        line = (one.positions.lineno if one.positions is not None else None) or line
        yield one, line


def _uses(code: CodeType, instructions: list[dis.Instruction]) -> Iterator[Use]:
    for place, (one, line) in enumerate(_with_lines(code, instructions)):
        if one.opname == "IMPORT_NAME":
            level, names = instructions[place - 2].argval, instructions[place - 1].argval
            yield Use("import", "." * level + one.argval, names or (), line)
        elif one.opname in _READS:
            if _READS[one.opname] == "closure" and one.argval not in code.co_freevars:
                continue
            end = place + 1
            while end < len(instructions) and instructions[end].opname in _ATTRIBUTES:
                end += 1
            attributes = tuple(i.argval for i in instructions[place + 1 : end])
            yield Use(_READS[one.opname], one.argval, attributes, line)


def _is_hidden(instruction: dis.Instruction) -> bool:
    asks = instruction.opname in _ATTRIBUTES or instruction.opname in ("LOAD_GLOBAL", "LOAD_CONST")
    return asks and isinstance(instruction.argval, str) and instruction.argval in HIDDEN_ATTRIBUTES


def _strings(constants: Any) -> Iterator[str]:
    for one in constants:
        if isinstance(one, str):
            yield one
        elif isinstance(one, (tuple, frozenset)):
            yield from _strings(one)


def _asks_for_computed_names(instructions: list[dis.Instruction]) -> bool:
    """Whether the name given to `getattr` is anything but a plain string after a plain object."""
    for place, one in enumerate(instructions):
        if one.opname in (*_READS, *_ATTRIBUTES) and one.argval in _COMPUTE:
            return True
        if one.opname in _READS and one.argval in _TAKE_NAMES and not _has_plain_arguments(instructions[place + 1 :]):
            return True
    return False


_COMPUTE = ("__getattribute__", "__getattr__", "attrgetter", "methodcaller")
_TAKE_NAMES = ("getattr", "hasattr")


def _has_plain_arguments(rest: list[dis.Instruction]) -> bool:
    """Whether a call takes a variable or an attribute, a string, and perhaps one more constant or variable."""
    names = [one.opname for one in rest]
    place = 1
    while names[place : place + 1] and names[place] in _ATTRIBUTES:
        place += 1
    is_called = names[place + 1 : place + 2] in _CALLS or (
        names[place + 1 : place + 2] in _LOADS and names[place + 2 : place + 3] in _CALLS
    )
    is_string = names[place : place + 1] == ["LOAD_CONST"] and isinstance(rest[place].argval, str)
    return names[0].startswith("LOAD_") and is_string and is_called


_CALLS = (["PRECALL"], ["CALL"])
_LOADS = (["LOAD_CONST"], ["LOAD_FAST"], ["LOAD_GLOBAL"], ["LOAD_DEREF"])


# -- what people see ----------------------------------------------------------------------------------------


def _source(code: CodeType) -> str:
    """The lines of a function, below the name of its file."""
    file = os.path.basename(code.co_filename)
    lines = linecache.getlines(code.co_filename)[code.co_firstlineno - 1 : _last_line(code)]
    if not lines:
        return f"{code.co_name}, of which there is no source"
    shown = [line.rstrip() for line in lines[:_MOST_LINES]]
    return "\n".join([f"# {file}", *shown, *(["..."] if len(lines) > _MOST_LINES else [])])


def _last_line(code: CodeType) -> int:
    own = max((line for _, _, line in code.co_lines() if line is not None), default=code.co_firstlineno)
    return max([own, *(_last_line(c) for c in code.co_consts if isinstance(c, CodeType))])
