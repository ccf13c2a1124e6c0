"""Entries to test with: good ones, and ones that no writer of ours would make."""

import hashlib
import json
import os
import struct
from pathlib import Path
from typing import Any

from foregrad.cache.format.container import Entry, pack, unpack
from foregrad.cache.format.keys import SharedKey
from foregrad.core.errors import CorruptArtifact, UntrustedArtifact

OURS = (CorruptArtifact, UntrustedArtifact)
KEY = SharedKey(b"a secret of thirty-two bytes or m")

ABOUT = {
    "kind": "step",
    "name": "train",
    "needs": {"torch": "2.13.0+cpu", "isa": "avx2"},
    "signature": {"inputs": [{"role": "param", "name": "weight", "spec": "f32[8, 8]"}], "outputs": []},
    "program": 'x = "ünïcode", \\ and\nlines',
    "timings": [0.25, -1e-9, 3, True, None],
}
BLOBS = {"code/forward.so": b"\x7fELF" + bytes(range(70)), "empty": b"", "weights": bytes(range(256)) * 2}


def small(signer: SharedKey | None = None) -> bytes:
    return pack(ABOUT, BLOBS, signer=signer)


def contents(entry: Entry) -> tuple[dict[str, Any], dict[str, bytes]]:
    return entry.about, {name: bytes(entry.blob(name)) for name in entry.names}


def outcome(data: bytes, **options: Any) -> Any:
    """The contents of an entry, or our error; any other error is raised."""
    try:
        return contents(unpack(data, **options))
    except OURS as error:
        return error


def forge(text: bytes | str, body: bytes = b"", *, file_length: int | None = None, version: int = 1) -> bytes:
    """An entry with this text as its header, whose digest and lengths are right."""
    if isinstance(text, str):
        text = text.encode()
    begin = -(-(64 + len(text)) // 64) * 64
    length = begin + len(body) if file_length is None else file_length
    prelude = struct.pack(
        "<8sIIQQ32s", b"\x89fg\r\n\x1a\n\0", version, 0, len(text), length, hashlib.sha256(text).digest()
    )
    return (prelude + text).ljust(begin, b"\0") + body


def header_of(blobs: Any, about: Any = None, **others: Any) -> str:
    """The text of a header with this table of blobs."""
    return json.dumps({"format": 1, "about": about or {}, "blobs": blobs, **others})


def row(name: Any = "a", offset: Any = 0, length: Any = 0, sha256: Any = None, data: bytes = b"") -> dict[str, Any]:
    return {"name": name, "offset": offset, "length": length, "sha256": sha256 or hashlib.sha256(data).hexdigest()}


def sparse(path: Path, length: int, about: Any = None, name: str = "weights") -> Path:
    """A file with one blob of zeros, as long as its header says, which takes no room on a disk."""
    text = header_of([row(name, 0, length)], about)
    start = len(forge(text))
    path.write_bytes(forge(text, file_length=start + length))
    os.truncate(path, start + length)
    return path
