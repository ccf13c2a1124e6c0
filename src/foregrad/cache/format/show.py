"""What `foregrad show` says of a `.fg` file. It runs nothing of the file, and sends no text of it raw to a terminal.

It reads the header, which is bounded, and no blob, unless it is asked to check their digests: a file of any size is
shown at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from foregrad.cache.format import header as head
from foregrad.cache.format.byte_source import OpenFile
from foregrad.cache.format.container import Entry, check_length
from foregrad.cache.format.header import DEFAULT_LIMITS, Header
from foregrad.cache.format.keys import Key, Trust
from foregrad.core.errors import CorruptArtifact, UntrustedArtifact

Row = tuple[str, ...]

#: Keys of `about` that are shown in a way of their own; all others follow as they are.
_KNOWN = ("kind", "name", "needs", "provenance", "signature", "ingredients", "program", "captures", "state", "weights")

#: Of each section as many rows, and of each cell as many characters, as a screen or two have room for.
_ROWS, _WIDTH = 10, 100

#: Of each listing as many lines, and of each line as many characters, as somebody reads.
_LINES, _LINE = 1000, 400

#: What is known of a blob: its digest is right; nobody has asked; the file ends before it does; its digest is wrong.
OK, UNCHECKED, CUT, DAMAGED = "ok", "unchecked", "cut short", "damaged"


@dataclass(frozen=True)
class FileReport:
    """What a file says of itself, whether its blobs and signature are right, and everything that is wrong."""

    file: str
    header: Header
    blobs: dict[str, str]
    signature: str
    problems: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The report as plain data."""
        signature = self.header.signature
        return {
            "file": self.file,
            "length": self.header.file_length,
            "format": head.VERSION,
            "sha256": self.header.sha256,
            "about": self.header.about,
            "blobs": [asdict(blob) | {"state": self.blobs[blob.name]} for blob in self.header.blobs],
            "signature": self.signature,
            "algorithm": signature and signature.algorithm,
            "key_id": signature and signature.key_id.hex(),
            "problems": list(self.problems),
        }

    def lines(self, *, listing: bool = False, everything: bool = False) -> Iterator[str]:
        """The report as text: titles at the left, what belongs to them indented. `listing` adds the programs,
        `everything` the rows, lines and cells that are left out for length."""
        about = self.header.about
        width = None if everything else _LINE
        title = " ".join(_text(about[key]) for key in ("kind", "name") if key in about) or "unnamed"
        yield printable(_short(title, width))
        yield from _table([tuple(_short(cell, width) for cell in row) for row in self._summary()])
        for title, rows in self._sections().items():
            if rows:
                yield title
                yield from _table(rows if everything else _first(rows))
            if len(rows) > _ROWS and not everything:
                yield f"  and {len(rows) - _ROWS} more, which --all prints"
        if UNCHECKED in self.blobs.values():
            yield "blobs are not checked: --verify reads them"
        yield from self._listings(listing, everything)
        yield from (f"problem: {printable(_short(problem, width))}" for problem in self.problems)

    def _listings(self, listing: bool, everything: bool) -> Iterator[str]:
        programs = self._programs()
        for number, (name, program) in enumerate(programs.items()):
            if number == _ROWS and not everything:
                yield f"and {len(programs) - _ROWS} more programs, which --program --all prints"
                return
            yield name if listing else f"{name}: {len(program)} lines, which --program prints"
            if not listing:
                continue
            shown = program if everything else program[:_LINES]
            yield from (f"  {printable(_short(line, None if everything else _LINE))}" for line in shown)
            if len(shown) < len(program):
                yield f"  and {len(program) - len(shown)} more lines, which --program --all prints"

    @property
    def _captures(self) -> list[dict[str, Any]]:
        """What a saved function says of each of its programs."""
        captures = self.header.about.get("captures")
        return [one for one in captures if isinstance(one, dict)] if isinstance(captures, list) else []

    def _programs(self) -> dict[str, list[str]]:
        """The listings, by what they are called."""
        listings = {"program": _text(self.header.about.get("program", ""))}
        for number, one in enumerate(self._captures, 1):
            listings[f"program {number}"] = _text(one.get("program", ""))
        return {name: text.splitlines() for name, text in listings.items() if text.strip()}

    def _summary(self) -> list[Row]:
        rows: list[Row] = [
            ("file", f"{self.file}, {size_text(self.header.file_length)}, format {head.VERSION}"),
            ("signed by", self.signature),
        ]
        return rows + [
            (key, _pairs(self.header.about[key])) for key in ("needs", "provenance") if key in self.header.about
        ]

    def _sections(self) -> dict[str, list[Row]]:
        about, captures = self.header.about, self._captures
        signature = about.get("signature") if "signature" in about or not captures else captures[-1].get("signature")
        if not isinstance(signature, dict):
            signature = {"inputs": signature}
        blobs = sorted(self.header.blobs, key=lambda blob: self.blobs[blob.name] in (OK, UNCHECKED))  # bad ones first
        return {
            "programs": [(f"{number}.", _text(one.get("reason", ""))) for number, one in enumerate(captures, 1)],
            "inputs": _columns(signature.get("inputs"), "role", "name", "spec"),
            "outputs": _columns(signature.get("outputs"), "role", "name", "spec"),
            "state": _state(about.get("state"), about.get("weights")),
            "blobs": [(self.blobs[b.name], b.name, size_text(b.length), f"sha256 {b.sha256[:16]}") for b in blobs],
            "ingredients": _columns(about.get("ingredients"), "name", "digest", "description"),
            "other": [(key, _text(value)) for key, value in about.items() if key not in _KNOWN],
        }


def examine(
    path: Path,
    keys: tuple[Key, ...] = (),
    *,
    start: int = 0,
    told: Callable[[int, int], object] | None = None,
) -> FileReport:
    """Everything that the header of a file says, from its byte `start` on; with keys, one of them must have signed it.

    With `told`, all blobs are read too, and their digests checked: it gets the length of each piece, and of all blobs.
    A file whose header cannot be read is a CorruptArtifact.
    """
    opened = OpenFile(path, start)
    header = head.read(opened, None, DEFAULT_LIMITS)
    entry = Entry(header, opened)
    distrust = _problem(partial(head.read, opened, Trust(keys), DEFAULT_LIMITS)) if keys else None
    problems = [distrust, _problem(partial(check_length, opened, header))]
    blobs = {blob.name: CUT if blob.end > opened.length else UNCHECKED for blob in header.blobs}
    if told is not None:
        whole = sum(blob.length for blob in header.blobs if blobs[blob.name] == UNCHECKED)
        for name in [name for name, state in blobs.items() if state == UNCHECKED]:
            problems.append(_problem(partial(entry.check, name, lambda length: told(length, whole))))
            blobs[name] = DAMAGED if problems[-1] else OK
    found = tuple(problem for problem in problems if problem)
    return FileReport(str(path), header, blobs, _signature(header, keys, distrust), found)


def _problem(check: Callable[[], object]) -> str | None:
    try:
        check()
    except (CorruptArtifact, UntrustedArtifact) as error:
        return str(error)
    return None


def _signature(header: Header, keys: tuple[Key, ...], distrust: str | None) -> str:
    if header.signature is None:
        return "nobody"
    if not keys:
        return f"{header.signature}, not checked since no key is given"
    return f"{header.signature}, {'refused' if distrust else 'accepted'}"


def _columns(rows: Any, *keys: str) -> list[Row]:
    """Rows of a list of objects; what is no such list is one row."""
    if rows is None:
        return []
    if not (isinstance(rows, list) and all(isinstance(row, dict) for row in rows)):
        return [(_text(rows),)]
    return [tuple(_text(row.get(key, "")) for key in keys) for row in rows]


def _state(state: Any, weights: Any) -> list[Row]:
    """The modules, optimizers and tensors that the programs work on."""
    if not isinstance(state, list):
        return [] if state is None else [(_text(state),)]
    held = "contents in the file" if weights is True else "contents not in the file"
    return [
        (_text(one.get("class", one.get("is", ""))), f"{_num_tensors(one)} tensors, {held}")
        for one in state
        if isinstance(one, dict)
    ]


def _num_tensors(value: Any) -> int:
    """How many tensors a description names; a parameter in an optimizer is that of its module."""
    names, waiting = set(), [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict) and one.get("is") == "tensor":
            names.add(_text(one.get("name", "")))
        elif isinstance(one, (dict, list)):
            waiting += one.values() if isinstance(one, dict) else one
    return len(names)


def _first(rows: list[Row]) -> list[Row]:
    """As many rows as there is room for: what a user passes before what a model has."""
    kept = sorted(rows, key=lambda row: row[0] != "input") if len(rows) > _ROWS else rows
    return [tuple(_short(cell, _WIDTH) for cell in row) for row in kept[:_ROWS]]


def _short(text: str, width: int | None) -> str:
    return text if width is None or len(text) <= width else f"{text[: width - 1]}…"


def _pairs(value: Any) -> str:
    if not isinstance(value, dict):
        return _text(value)
    return ", ".join(f"{key} {_text(item)}" for key, item in value.items())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _table(rows: list[Row]) -> Iterator[str]:
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in cells if i < len(row)) for i in range(max(map(len, cells), default=0))]
    for row in cells:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip()


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey: escapes for what controls it or turns the direction of text."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def size_text(length: int) -> str:
    size, units = float(length), iter(("kB", "MB", "GB", "TB"))
    unit = "B"
    while size >= 1000 and unit != "TB":
        size, unit = size / 1000, next(units)
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
