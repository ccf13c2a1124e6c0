"""Code digest: what code objects do, without comments, docstrings, line numbers and file names."""

from __future__ import annotations

import dis
import hashlib
import inspect
import sys
from types import CodeType

from foregrad.cache.key.constants import constant_text

_LOAD_CONST, _STORE_NAME = dis.opmap["LOAD_CONST"], dis.opmap["STORE_NAME"]
_HAS_DOCSTRING = 0x4000000  # a flag since Python 3.14


_known: dict[int, tuple[CodeType, str]] = {}  # code is kept alive, so that its id stays its own


def known_digest(code: CodeType) -> str:
    """The digest of code that is loaded, found once in a process."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = (code, code_digest(code))
    return known[1]


def code_digest(code: CodeType) -> str:
    """The digest of code and of all code in it. Variables of functions go by their places, parameters by names."""
    num_named = code.co_argcount + code.co_kwonlyargcount
    num_named += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    is_by_place = bool(code.co_flags & inspect.CO_OPTIMIZED)
    variables = (*code.co_varnames, *code.co_cellvars, *code.co_freevars)
    instructions = code.co_code
    parts = (
        (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_nlocals),
        (len(code.co_cellvars), len(code.co_freevars), code.co_exceptiontable.hex(), code.co_names, code.co_qualname),
        code.co_varnames[:num_named] if is_by_place else variables,
        instructions.hex(),
    )
    docstring = _docstring(code, instructions)
    constants = [
        "a docstring" if place == docstring else constant_text(one, code_digest)
        for place, one in enumerate(code.co_consts)
    ]
    return hashlib.sha256(repr((parts, constants)).encode()).hexdigest()


def _docstring(code: CodeType, instructions: bytes) -> int | None:
    """The place of the docstring among the constants, if that is all it is."""
    place = _place_of_docstring(code, instructions)
    if place is None or not isinstance(code.co_consts[place], (str, type(None))):
        return None
    loads = [i for i in range(0, len(instructions), 2) if instructions[i : i + 2] == bytes([_LOAD_CONST, place])]
    return place if len(loads) == (0 if code.co_flags & inspect.CO_OPTIMIZED else 1) else None


def _place_of_docstring(code: CodeType, instructions: bytes) -> int | None:
    """Functions have it first among their constants; modules and classes store it."""
    if code.co_flags & inspect.CO_OPTIMIZED:
        has_one = sys.version_info < (3, 14) or bool(code.co_flags & _HAS_DOCSTRING)
        return 0 if has_one and code.co_consts and not code.co_name.startswith("<") else None
    if "__doc__" not in code.co_names[:256]:
        return None
    at = instructions.find(bytes([_STORE_NAME, code.co_names.index("__doc__")]))
    return instructions[at - 1] if at >= 2 and instructions[at - 2] == _LOAD_CONST else None
