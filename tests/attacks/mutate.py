"""Valid files with random changes that keep them well formed: hostile objects, names, texts and numbers."""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import replace
from typing import Any

from tests.attacks.hostile import CANARY, CREATES, Saved, module, step

#: What is put in the place of a part of a description.
JUNK: list[Any] = [
    *(None, True, -1, 0, 10**9, 10**30, 1.5, "", "tensor", "__class__", "__init__", [], {}, [[]], {"": ""}),
    *({"is": "object", "at": 0}, {"is": "object", "at": -1}, {"is": "recipe", "of": {"is": "object", "at": 0}}),
    *({"is": name} for name in ("made", "function", "kernel", "library", "method", "error", "state", "globals")),
    *(
        {"is": "known", "name": n}
        for n in ("os.system", "builtins.exec", "torch.load", "torch.Tensor", "torch", "math")
    ),
    *({"is": "op", "name": n} for n in ("aten::from_file.default", "aten::add.Tensor", "aten::set_.source_Tensor")),
    {"is": "made", "kind": "PythonReads", "parts": {}},
    {"is": "made", "kind": "Guarded", "parts": {"graph": {"is": "object", "at": 0}, "name": "forward"}},
    {"is": "method", "of": {"is": "object", "at": 0}, "name": "__reduce__"},
    {"is": "error", "type": {"is": "object", "at": 0}, "arguments": {"is": "tuple", "items": [f"touch {CANARY}"]}},
    {"is": "structure", "text": '[1, {"type": "collections.defaultdict", "context": null, "children_spec": []}]'},
    {"is": "size", "items": [10**12, 10**12]},
    {"is": "tuple", "items": [1] * 1000},
    {"is": "dict", "items": [[{"is": "list", "items": []}, 1]]},
    {"is": "float", "text": "1e999"},
    {"is": "device", "text": "cuda:99"},
    CREATES,
]

#: What is put between the words of a text.
FRAGMENTS = [
    CREATES, f"__import__('os').system('touch {CANARY}')", f"exec({CREATES!r})", "args", "kwargs", "MISS", "ctx", "o0",
    "call", "state", "owner", "forward_half", ".__class__", ".__globals__", ".__dict__", ".data", ".grad", ".get", "()",
    "[0]", "lambda: 0", "(yield)", "await x", "*", "**", "(", ")", "[", "]", "{", "}", ",", ":", "=", ":=", "if",
    "else", "for", "in", "not", "is", "map", "type", "len", "getattr", "'", '"', "\n    ", "\n        ", "\n", "\\",
    "#", "; ", "return ", "import os", "global o0", "del o0", "with ", "try:", "except BaseException:", "1", "-1",
    "10**10", "9**9**9", "'a' * 10**10", "(0,) * 10**9", "0x10", "1j", "f'{x}'", "b''", "...", "\x00", "\r", "\x0c",
]  # fmt: skip

_WORDS = re.compile(r"\w+|\s+|.")


def mutated(seed: int) -> Saved:
    """A file that nobody has signed, with one to three changes."""
    chance = random.Random(seed)
    saved = chance.choice((step, module))()
    for _ in range(chance.randint(1, 3)):
        saved = chance.choice(_CHANGES)(saved, chance)
    return saved


def _of_objects(saved: Saved, chance: random.Random) -> Saved:
    try:
        return saved.with_table(_changed(saved.table, chance))
    except ValueError:  # no JSON any more, by an earlier change
        return saved


def _of_header(saved: Saved, chance: random.Random) -> Saved:
    return replace(saved, about=_changed(saved.about, chance))


def _of_text(saved: Saved, chance: random.Random) -> Saved:
    try:
        table = saved.table
        lines = chance.choice([one for one in table if one["is"] == "function"])["lines"]
        for _ in range(chance.randint(1, 4)):
            holder, place = lines, chance.randrange(len(lines))
            if isinstance(lines[place], dict):  # a check
                holder = lines[place]
                place = chance.choice(list(holder))
            words = _WORDS.findall(str(holder[place]))
            start, fragment = chance.randrange(len(words) + 1), chance.choice(FRAGMENTS)
            words[start : start + chance.randint(0, 2)] = [fragment, *chance.choice(([], [" "]))]
            holder[place] = "".join(words)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError):
        return saved
    return saved.with_table(table)


def _of_bytes(saved: Saved, chance: random.Random) -> Saved:
    name = chance.choice([*saved.blobs, "objects.json", "state.safetensors"])
    data = bytearray(saved.blobs[name])
    for _ in range(chance.randint(1, 8)):
        place = chance.randrange(len(data) + 1)
        data[place : place + chance.randint(0, 3)] = chance.randbytes(chance.randint(0, 3))
    return replace(saved, blobs={**saved.blobs, name: bytes(data)})


_CHANGES = (_of_objects, _of_objects, _of_header, _of_text, _of_text, _of_bytes)


def _changed(value: Any, chance: random.Random) -> Any:
    """JSON with another value somewhere, or without one, or with one of its own parts elsewhere."""
    value = copy.deepcopy(value)
    found = list(_places(value))
    if not found:
        return value
    holder, key = chance.choice(found)
    kind = chance.random()
    if kind < 0.15:
        holder.pop(key)
    elif kind < 0.35:
        other, place = chance.choice(found)
        holder[key] = copy.deepcopy(other[place])
    elif kind < 0.45:
        holder[key] = json.loads("[" * 50 + "]" * 50) if chance.random() < 0.5 else "x" * chance.choice((300, 10**6))
    else:
        holder[key] = copy.deepcopy(chance.choice(JUNK))
    return value


def _places(value: Any) -> Any:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in entries:
        yield value, key
        yield from _places(inner)
