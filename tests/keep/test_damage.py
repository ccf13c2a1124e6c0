"""A damaged or made-up entry is refused with an error of ours; never is a wrong blob handed out."""

import errno
import json
import os

import pytest

from foregrad.cache.format import byte_source as opened
from foregrad.cache.format.container import read_header, unpack, write
from foregrad.cache.format.keys import Trust
from foregrad.core.errors import CorruptArtifact
from tests.keep.entries import ABOUT, BLOBS, KEY, contents, forge, header_of, outcome, row, small

EMPTY = header_of([])


@pytest.mark.parametrize("signer", [None, KEY], ids=["unsigned", "signed"])
def test_any_flipped_bit_is_found_or_changes_nothing(signer):
    data = small(signer)
    right = contents(unpack(data))
    found = 0
    for index in range(len(data)):
        for bit in (index % 8, 7):
            damaged = bytearray(data)
            damaged[index] ^= 1 << bit
            result = outcome(bytes(damaged))
            found += isinstance(result, Exception)
            assert isinstance(result, Exception) or result == right, index
    # only the bytes of a signature that nobody asks for may differ
    assert found >= 2 * (len(data) - (80 if signer else 0))


def test_any_flipped_bit_of_a_signed_entry_is_found_by_those_who_trust():
    data = small(KEY)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << (index % 8)
        assert isinstance(outcome(bytes(damaged), trust=Trust((KEY,))), Exception), index


def test_any_other_length_is_found():
    data = small(KEY)
    for length in range(len(data)):
        assert isinstance(outcome(data[:length]), CorruptArtifact), length
    for more in (b"\0", b"\n", bytes(64), data):
        assert "has bytes after its end" in str(outcome(data + more))


def test_files_are_checked_as_bytes_are(tmp_path):
    path = tmp_path / "a.fg"
    data = small()
    for length in range(0, len(data), 13):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptArtifact, match=r"a\.fg "):
            unpack(path)


def test_an_entry_that_shrinks_while_it_is_open_is_found(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    entry = unpack(path)
    os.truncate(path, 1000)
    with pytest.raises(CorruptArtifact, match="is damaged in its blob 'weights'"):
        entry.blob("weights")
    with pytest.raises(CorruptArtifact, match="is damaged in its blob 'weights'"), entry.taken("weights"):
        raise ValueError("something that was read is not as it should be")


def test_errors_of_the_disk_are_damage(tmp_path, monkeypatch):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    entry = unpack(path)

    def failing(*args):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(opened.os, "preadv", failing)
    with pytest.raises(CorruptArtifact, match=r"a\.fg cannot be read at byte \d+: .*Input/output error"):
        entry.blob("weights")


def test_a_damaged_blob_does_not_keep_others_from_being_read():
    data = bytearray(small())
    data[-1] ^= 1
    entry = unpack(bytes(data))
    assert bytes(entry.blob("code/forward.so")) == BLOBS["code/forward.so"]
    with pytest.raises(
        CorruptArtifact, match=r"the entry is damaged in its blob 'weights', bytes \d+ to \d+\. Nothing"
    ):
        entry.blob("weights")


def test_the_forger_of_these_tests_can_make_a_good_entry():
    assert contents(unpack(forge(EMPTY))) == ({}, {})
    text = header_of([row("a", 0, 3, data=b"abc"), row("b", 64, 1, data=b"d")])
    assert contents(unpack(forge(text, b"abc".ljust(64, b"\0") + b"d"))) == ({}, {"a": b"abc", "b": b"d"})


NAMES = [
    "/a",
    "../a",
    "a/../b",
    "a/..",
    "..",
    ".",
    "a//b",
    "a/",
    "a\\b",
    "C:a",
    "a b",
    "a\n",
    "a\0",
    "ä",
    "",
    3,
    None,
    ["a"],
]


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_names_that_lead_elsewhere_are_refused(name):
    with pytest.raises(CorruptArtifact, match="has a blob of the name"):
        unpack(forge(header_of([row(name)])))


HUGE = [2**31, 2**53 + 1, 2**63, 2**64, 10**30]


@pytest.mark.parametrize("value", [-1, 1.0, 0.5, True, False, None, "1", [1], {}, *HUGE], ids=repr)
@pytest.mark.parametrize("key", ["offset", "length"])
def test_lengths_and_offsets_are_counts_of_bytes_that_are_there(key, value):
    with pytest.raises(CorruptArtifact):
        unpack(forge(header_of([row(**{key: value})]), b"\0"))


@pytest.mark.parametrize("value", ["", "0" * 63, "g" * 64, "A" * 64, "0" * 64 + "\n", 0, None, [], True], ids=repr)
def test_digests_are_digests(value):
    rows = [row() | {"sha256": value}]
    with pytest.raises(CorruptArtifact, match="without a digest"):
        unpack(forge(header_of(rows)))


LAYOUTS = {
    "overlap": ([row("a", 0, 3, data=b"abc"), row("b", 0, 3, data=b"abc")], b"abc"),
    "overlap by a byte": ([row("a", 0, 65), row("b", 64, 1)], bytes(65)),
    "not aligned": ([row("a", 0, 1), row("b", 1, 1)], bytes(2)),
    "a gap": ([row("a", 0, 1), row("b", 128, 1)], bytes(129)),
    "backwards": ([row("a", 64, 1), row("b", 0, 1)], bytes(65)),
    "a late start": ([row("a", 64, 0)], bytes(64)),
    "beyond the end": ([row("a", 0, 10)], bytes(9)),
    "before the end": ([row("a", 0, 8)], bytes(9)),
    "two of one name": ([row("a", 0, 0), row("a", 0, 0)], b""),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_blobs_follow_each_other_to_the_end(name):
    rows, body = LAYOUTS[name]
    with pytest.raises(CorruptArtifact):
        unpack(forge(header_of(rows), body))


def test_nothing_hides_between_blobs():
    text = header_of([row("a", 0, 1, data=b"a"), row("b", 64, 1, data=b"b")])
    assert unpack(forge(text, b"a".ljust(64, b"\0") + b"b")).blob("b") == b"b"
    with pytest.raises(CorruptArtifact, match="where zeros belong"):
        unpack(forge(text, b"a".ljust(64, b"!") + b"b"))


def about(text: str) -> str:
    return '{"format":1,"blobs":[],"about":%s}' % text  # noqa: UP031  # braces


TEXTS = {
    "nested lists": about("[" * 100_000 + "]" * 100_000),
    "nested objects": about('{"a":' * 100_000 + "1" + "}" * 100_000),
    "nested and never closed": "[" * 10_000_000,
    "nested after a string with an escaped quote": about('{"a":"\\"","b":' + "[" * 5000 + "]" * 5000 + "}"),
    "many values": about('{"a":[' + "0," * 1_000_000 + "0]}"),
    "many lists": about('{"a":[' + "[]," * 1_000_000 + "[]]}"),
    "a string that never ends": about('"' + '\\"' * 1_000_000),
    "a string that ends in a backslash": about('"\\'),
    "a key twice": about('{"a":1,"a":2}'),
    "a key twice, once escaped": about('{"a":1,"\\u0061":2}'),
    "blobs twice": '{"format":1,"blobs":[],"about":{},"blobs":[]}',
    "NaN": about('{"a":NaN}'),
    "Infinity": about('{"a":-Infinity}'),
    "a float too large": about('{"a":1e999}'),
    "an integer too large": about('{"a":%s}' % ("9" * 5000)),
    "half a surrogate pair": about('{"a":"\\ud800"}'),
    "half a surrogate pair in a key": about('{"\\udfff":1}'),
    "bytes that are no UTF-8": about('{"a":"?"}').encode().replace(b"?", b"\xff"),
    "a surrogate in UTF-8": about('{"a":"?"}').encode().replace(b"?", b"\xed\xa0\x80"),
    "an overlong slash": about('{"a":"?"}').encode().replace(b"?", b"\xc0\xaf"),
    "UTF-16": EMPTY.encode("utf-16"),
    "UTF-16 without a mark": EMPTY.encode("utf-16-le"),
    "a byte order mark": b"\xef\xbb\xbf" + EMPTY.encode(),
    "a line break in a string": about('{"a":"\n"}'),
    "nothing": "",
    "a number": "1",
    "a list": "[]",
    "null": "null",
    "two values": EMPTY + EMPTY,
    "a comma at the end": about('{"a":1,}'),
    "a comment": EMPTY + "// no",
    "no about": '{"format":1,"blobs":[]}',
    "another key": header_of([], code="import os"),
    "about as a list": about("[]"),
    "about as null": about("null"),
    "blobs as an object": header_of({}),
    "blobs as text": header_of("abc"),
    "blobs of numbers": header_of([1]),
    "blobs with other keys": header_of([row() | {"mode": 511}]),
    "blobs without a name": header_of([{"offset": 0, "length": 0, "sha256": row()["sha256"]}]),
    "too many blobs": header_of([row(f"a{i}") for i in range(4097)]),
    "format true": EMPTY.replace('"format": 1', '"format": true'),
    "format 1.0": EMPTY.replace('"format": 1', '"format": 1.0'),
    "format 2": EMPTY.replace('"format": 1', '"format": 2'),
}


@pytest.mark.parametrize("name", TEXTS)
def test_hostile_headers_are_refused(name):
    data = forge(TEXTS[name])
    for read in (unpack, read_header):
        with pytest.raises(CorruptArtifact, match="Nothing of it was used") as caught:
            read(data)
        assert len(str(caught.value)) < 500


def test_hostile_lengths_in_the_prelude_allocate_nothing():
    data = bytearray(small())
    for place in (slice(12, 16), slice(16, 24), slice(24, 32)):
        hostile = bytearray(data)
        hostile[place] = b"\xff" * len(hostile[place])
        assert isinstance(outcome(bytes(hostile)), CorruptArtifact)


def test_another_format_version_says_so():
    with pytest.raises(CorruptArtifact, match="has format 2, and this foregrad reads format 1"):
        unpack(forge(EMPTY, version=2))


def test_other_kinds_of_files_are_told_apart():
    for data in (b"", b"PK\x03\x04" + bytes(100), b"\x80\x04\x95" + bytes(100), json.dumps(ABOUT).encode()):
        with pytest.raises(CorruptArtifact, match=r"does not begin as a \.fg file does"):
            unpack(data)
