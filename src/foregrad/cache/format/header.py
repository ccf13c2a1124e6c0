"""The first part of a `.fg` file: prelude, header and signature. FORMAT.md specifies them byte by byte.

prelude    64 bytes: magic, format version, lengths, digest of the header
header     {"format": 1, "about": {...}, "blobs": [{"name", "offset", "length", "sha256"}, ...]}
signature  of all bytes before it, or nothing
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from foregrad.cache.format import strict_json
from foregrad.cache.format.byte_source import Readable

if TYPE_CHECKING:
    from foregrad.cache.format.keys import FileSignature, Signer, Trust
from foregrad.core.errors import CorruptArtifact

MAGIC = b"\x89fg\r\n\x1a\n\0"
VERSION = 1
ALIGNMENT = 64
PRELUDE_BYTES = 64

#: magic, format version, length of the signature block, of the header, of the file, SHA-256 of the header
_PRELUDE = struct.Struct("<8sIIQQ32s")
#: algorithm and key id; the value of the signature follows
_SIGNATURE = struct.Struct("<16s32s")
_MOST_SIGNATURE_BYTES = 4096

_ALGORITHM = re.compile(rb"([a-z0-9-]+)\0*")
_NAME = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Limits:
    """What a reader is prepared for. A file that asks for more is refused before anything is allocated for it."""

    header_bytes: int = 64 << 20
    header_values: int = 1_000_000
    header_depth: int = 64
    num_blobs: int = 4096
    blob_bytes: int = 1 << 40
    name_length: int = 200


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Blob:
    """One row of the table: the bytes of a file that are a blob, and their digest."""

    name: str
    offset: int
    length: int
    sha256: str

    @property
    def end(self) -> int:
        return self.offset + self.length


@dataclass(frozen=True)
class Header:
    """What a file says of itself. `about` is what it was packed with; `sha256` is of the header's own text."""

    about: dict[str, Any]
    blobs: tuple[Blob, ...]
    signature: FileSignature | None
    sha256: str
    head_length: int
    file_length: int

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The zeros between head and blobs, begin and end of each."""
        begins = [self.head_length, *(blob.end for blob in self.blobs)]
        ends = [*(blob.offset for blob in self.blobs), self.file_length]
        return list(zip(begins, ends, strict=True))


def aligned(offset: int) -> int:
    """The next place where a blob can begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def build(about: dict[str, Any], blobs: Mapping[str, memoryview], signer: Signer | None) -> bytes:
    """The first part of a file, up to its first blob; a ValueError if `read` would refuse it."""
    rows, end = [], 0
    for name, view in blobs.items():
        rows.append(Blob(name, aligned(end), len(view), hashlib.sha256(view).hexdigest()))
        end = rows[-1].end
    return build_from_rows(about, rows, signer)


def build_from_rows(about: dict[str, Any], rows: Sequence[Blob], signer: Signer | None) -> bytes:
    """The same for blobs whose digests are known; their offsets count from the first one's."""
    text = _write_text(about, rows)
    signature_length = _SIGNATURE.size + signer.signature_length if signer else 0
    start = aligned(_PRELUDE.size + len(text) + signature_length)
    digest = hashlib.sha256(text).digest()
    file_length = start + (rows[-1].end if rows else 0)
    head = _PRELUDE.pack(MAGIC, VERSION, signature_length, len(text), file_length, digest) + text
    if signer:
        head += _SIGNATURE.pack(signer.algorithm.encode(), signer.key_id)
        head += signer.sign(head)
    return head.ljust(start, b"\0")


def read(source: Readable, trust: Trust | None, limits: Limits) -> Header:
    """The header of a file. With `trust`, its signature is checked before its text is parsed."""
    prelude = source.read(0, _PRELUDE.size)
    if len(prelude) < _PRELUDE.size or prelude[: len(MAGIC)] != MAGIC:
        raise corrupt(
            source, "does not begin as a .fg file does: it is another kind of file, or was changed on its way"
        )
    _, version, signature_length, text_length, file_length, digest = _PRELUDE.unpack(prelude)
    if version != VERSION:
        raise corrupt(source, f"has format {version}, and this foregrad reads format {VERSION}")
    if text_length > limits.header_bytes or signature_length > _MOST_SIGNATURE_BYTES:
        what = f"a header of {text_length} bytes and a signature of {signature_length}"
        most = f"{limits.header_bytes} and {_MOST_SIGNATURE_BYTES}"
        raise corrupt(source, f"says that it has {what}; the most that is read is {most}")
    head_length = _PRELUDE.size + text_length + signature_length
    head = source.read(0, head_length)
    if len(head) < head_length:
        raise corrupt(source, f"ends inside its header, at byte {len(head)} of {head_length}")
    text = bytes(head[_PRELUDE.size : _PRELUDE.size + text_length])
    if hashlib.sha256(text).digest() != digest:
        raise corrupt(source, f"is damaged in its header, bytes {_PRELUDE.size} to {_PRELUDE.size + text_length}")

    signature = _read_signature(source, bytes(head[_PRELUDE.size + text_length :]))
    if trust is not None:
        trust.check(source.where, signature, bytes(head[: -len(signature.value)]) if signature else b"")
    try:
        about, blobs = _read_text(text, aligned(head_length), limits)
    except ValueError as error:
        raise corrupt(source, f"has a header that {error}") from None
    end = blobs[-1].end if blobs else aligned(head_length)
    if end != file_length:
        raise corrupt(source, f"says that it has {file_length} bytes, but its blobs end at byte {end}")
    return Header(about, blobs, signature, digest.hex(), head_length, file_length)


def corrupt(source: Readable, what: str) -> CorruptArtifact:
    """The error for a file that something is wrong with."""
    return CorruptArtifact(
        f"{source.where} {what}. Nothing of it was used: build it again, or get it again from where it came."
    )


def stated_length(prelude: bytes) -> int | None:
    """How many bytes a file says that it has, by its first bytes; None if it is no `.fg` file of this format."""
    if len(prelude) < _PRELUDE.size or prelude[: len(MAGIC)] != MAGIC:
        return None
    _, version, _, _, file_length, _ = _PRELUDE.unpack_from(prelude)
    return int(file_length) if version == VERSION else None


def _write_text(about: dict[str, Any], rows: Sequence[Blob]) -> bytes:
    limits = DEFAULT_LIMITS
    header = {"format": VERSION, "about": about, "blobs": [asdict(row) for row in rows]}
    try:
        text = strict_json.encode(header, depth=limits.header_depth)
        _read_text(text, 0, limits)
    except ValueError as error:
        raise ValueError(f"this cannot be packed, since the header {error}") from None
    if len(text) > limits.header_bytes:
        raise ValueError(f"a header has at most {limits.header_bytes} bytes, this one {len(text)}; use a blob")
    return text


def _read_signature(source: Readable, block: bytes) -> FileSignature | None:
    if not block:
        return None
    if len(block) > _SIGNATURE.size:
        algorithm, key_id = _SIGNATURE.unpack_from(block)
        if match := _ALGORITHM.fullmatch(algorithm):
            from foregrad.cache.format.keys import FileSignature

            return FileSignature(match[1].decode(), key_id, block[_SIGNATURE.size :])
    raise corrupt(source, f"has {len(block)} bytes where its signature belongs that are none")


def _read_text(text: bytes, start: int, limits: Limits) -> tuple[dict[str, Any], tuple[Blob, ...]]:
    """What a file was packed with, and the table of its blobs; a ValueError says what is wrong."""
    header = strict_json.decode(text, depth=limits.header_depth, values=limits.header_values)
    if not (isinstance(header, dict) and header.keys() == {"format", "about", "blobs"}):
        raise ValueError("is no object with the keys format, about and blobs")
    if type(header["format"]) is not int or header["format"] != VERSION:
        raise ValueError(f"says format {header['format']!r:.40}, where its prelude says {VERSION}")
    if not isinstance(header["about"], dict):
        raise ValueError("holds something else than an object in about")
    rows = header["blobs"]
    if not isinstance(rows, list) or len(rows) > limits.num_blobs:
        raise ValueError(f"has no list of at most {limits.num_blobs} blobs")
    blobs: dict[str, Blob] = {}
    end = start
    for row in rows:
        blob = _read_row(row, start, limits)
        if blob.name in blobs:
            raise ValueError(f"has two blobs of the name {blob.name!r}")
        if blob.offset != aligned(end):
            kind = "overlap" if blob.offset < end else "do not follow each other"
            raise ValueError(
                f"has blobs that {kind}: {blob.name!r} is at {blob.offset - start}, not {aligned(end) - start}"
            )
        blobs[blob.name] = blob
        end = blob.end
    return header["about"], tuple(blobs.values())


def _read_row(row: Any, start: int, limits: Limits) -> Blob:
    if not (isinstance(row, dict) and row.keys() == {"name", "offset", "length", "sha256"}):
        raise ValueError("has a blob that is no object with the keys name, offset, length and sha256")
    name, offset, length, sha256 = (row[key] for key in ("name", "offset", "length", "sha256"))
    if not isinstance(name, str) or len(name) > limits.name_length or not _NAME.fullmatch(name):
        raise ValueError(f"has a blob of the name {name!r:.80}; names are words of A-Z a-z 0-9 . _ - with / between")
    if {".", ".."} & set(name.split("/")):
        raise ValueError(f"has a blob of the name {name!r}, which is a path to somewhere else")
    if not (type(length) is int and 0 <= length <= limits.blob_bytes):
        raise ValueError(f"has a blob {name!r} of length {length!r:.40}; the most that is read is {limits.blob_bytes}")
    if not (type(offset) is int and offset >= 0):
        raise ValueError(f"has a blob {name!r} at offset {offset!r:.40}")
    if not (isinstance(sha256, str) and _SHA256.fullmatch(sha256)):
        raise ValueError(f"has a blob {name!r} without a digest")
    return Blob(name, start + offset, length, sha256)
