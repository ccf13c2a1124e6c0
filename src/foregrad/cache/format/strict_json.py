"""JSON as the header of a file holds it: plain data in bounded size, with one meaning for every reader.

No NaN and no infinity, no key twice, no lone surrogates, and no nesting that a parser could fall over. Text that
comes from outside is measured before it is parsed. A ValueError completes the sentence "the header ...".
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

#: A string without escaped quotes; one that never ends reaches to the end of the text.
_STRING = re.compile(rb'"[^"]*+(?:"|\Z)')
_ALL_BUT_MARKS = bytes(set(range(256)) - set(b"[]{},"))


def encode(value: Any, *, depth: int) -> bytes:
    """Plain data as UTF-8 text that `decode` turns into equal data, the same text for equal data."""
    _check_plain(value, "", depth)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half of a surrogate pair, {error.object[error.start]!r}") from None


def decode(text: bytes, *, depth: int, values: int) -> Any:
    """What `encode` was given. At most `depth` levels of lists and dicts, and at most `values` values are parsed."""
    _check_measure(text, depth, values)
    try:
        value = json.loads(
            text.decode(), object_pairs_hook=_without_repeats, parse_constant=_refuse, parse_float=_finite
        )
        if b"\\u" in text:  # an escape can spell half of a surrogate pair
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError(f"is no UTF-8 at its byte {error.start}") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"holds half of a surrogate pair, {error.object[error.start]!r}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"is no JSON at its character {error.pos}: {error.msg}") from None
    return value


def _check_plain(value: Any, where: str, depth: int) -> None:
    """Only what comes back from JSON as it is; not a tuple, which comes back as a list."""
    if isinstance(value, dict | list) and not depth:
        raise ValueError(f"is nested too deep, at {where[:200]}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ValueError(f"has a key that is no string, {key!r} in {where or 'itself'}")
            _check_plain(item, f"{where}.{key}".lstrip("."), depth - 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_plain(item, f"{where}[{index}]", depth - 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"holds {value} at {where}, which JSON does not have; write it as text")
    elif not (value is None or isinstance(value, str | int | float)):
        raise ValueError(
            f"holds a {type(value).__name__} at {where}; JSON has dict, list, str, int, float, bool and None"
        )


def _check_measure(text: bytes, depth: int, values: int) -> None:
    """Bounds on nesting and on the number of values, found without parsing."""
    # where a backslash stands outside of strings, the parser goes no further
    without_escapes = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    marks = _STRING.sub(b"", without_escapes).translate(None, _ALL_BUT_MARKS)
    if marks.count(b",") + marks.count(b"[") + marks.count(b"{") >= values:  # each value but the outermost follows one
        raise ValueError(f"holds more than {values} values")
    level = 0
    for mark in marks.translate(None, b","):
        level += 1 if mark in b"[{" else -1
        if level > depth:
            raise ValueError(f"is nested more than {depth} levels deep")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"has the key {key[:100]!r} twice")
        found[key] = value
    return found


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"holds {name}, which JSON does not have")


def _finite(text: str) -> float:
    if math.isinf(number := float(text)):
        raise ValueError(f"holds the number {text[:40]}, which is too large")
    return number
