"""A reader of `.fg` files, written from FORMAT.md alone with struct, json and hashlib. It sets no limits."""

import hashlib
import json
import struct


def read(data: bytes) -> tuple[dict, dict[str, bytes]]:
    """`about` and the blobs of an entry; asserts what FORMAT.md says about lengths and digests."""
    magic, version, s, h, length, digest = struct.unpack("<8sIIQQ32s", data[:64])
    assert magic == bytes.fromhex("89 66 67 0D 0A 1A 0A 00")
    assert version == 1
    assert length == len(data)
    text = data[64 : 64 + h]
    assert hashlib.sha256(text).digest() == digest
    header = json.loads(text.decode("utf-8"))
    assert sorted(header) == ["about", "blobs", "format"]
    assert header["format"] == 1

    begin = (64 + h + s + 63) // 64 * 64
    assert not any(data[64 + h + s : begin])
    blobs, end = {}, 0
    for row in header["blobs"]:
        assert row["offset"] == (end + 63) // 64 * 64
        assert not any(data[begin + end : begin + row["offset"]])
        end = row["offset"] + row["length"]
        blob = data[begin + row["offset"] : begin + end]
        assert hashlib.sha256(blob).hexdigest() == row["sha256"]
        assert row["name"] not in blobs
        blobs[row["name"]] = blob
    assert begin + end == length
    return header["about"], blobs


def signature(data: bytes) -> tuple[str, bytes, bytes, bytes] | None:
    """Algorithm, key id, what is signed and the signature of an entry."""
    s, h = struct.unpack("<IQ", data[12:24])
    if s == 0:
        return None
    block = data[64 + h : 64 + h + s]
    return block[:16].rstrip(b"\0").decode("ascii"), block[16:48], data[: 64 + h + 48], block[48:]
