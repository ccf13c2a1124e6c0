"""Entries come back as they were packed, from memory and from files, and files are there as a whole or not at all."""

import errno
import os
import resource
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foregrad.cache.format.container import Limits, pack, read_header, unpack, write
from foregrad.core.errors import CorruptArtifact
from tests.keep import plain_reader
from tests.keep.entries import ABOUT, BLOBS, KEY, contents, small

PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
JSON = st.recursive(PLAIN, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,8}(/[A-Za-z0-9._-]{1,8}a)?", fullmatch=True)
ENTRIES = st.tuples(st.dictionaries(st.text(), JSON), st.dictionaries(NAMES, st.binary(max_size=200), max_size=5))


def same(a, b):
    """Equal, and of the same types: True is not 1, -0.0 is not 0.0."""
    return a == b and repr(a) == repr(b)


def sorted_deeply(value):
    if isinstance(value, dict):
        return {key: sorted_deeply(value[key]) for key in sorted(value)}
    return [sorted_deeply(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=60, deadline=None)
@given(ENTRIES)
def test_what_was_packed_comes_back(entry):
    about, blobs = entry
    data = pack(about, blobs)
    found, found_blobs = contents(unpack(data))
    assert same(found, sorted_deeply(about))
    assert found_blobs == blobs


@settings(max_examples=60, deadline=None)
@given(ENTRIES)
def test_a_reader_written_from_the_specification_agrees(entry):
    data = pack(*entry, signer=KEY)
    assert plain_reader.read(data) == contents(unpack(data))


@settings(max_examples=60, deadline=None)
@given(ENTRIES)
def test_equal_input_gives_equal_bytes(entry):
    about, blobs = entry
    again = pack(dict(reversed(about.items())), dict(reversed(blobs.items())))
    assert again == pack(about, blobs)


def test_blobs_lie_at_multiples_of_64_and_can_be_found_in_the_file(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    entry = unpack(path)
    for name, data in BLOBS.items():
        blob = next(blob for blob in entry.header.blobs if blob.name == name)
        assert blob.offset % 64 == 0
        assert path.read_bytes()[blob.offset : blob.end] == data


def test_a_file_holds_what_pack_returns(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS, signer=KEY)
    assert path.read_bytes() == small(KEY)
    assert contents(unpack(path)) == contents(unpack(small(KEY)))
    assert [p.name for p in tmp_path.iterdir()] == ["a.fg"]


def test_blobs_of_an_entry_in_memory_are_no_copies():
    data = small()
    view = unpack(data).blob("weights")
    assert view.readonly
    assert view.obj is data


def test_a_blob_that_is_taken_may_be_written_and_the_file_stays(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    with unpack(path).taken("weights") as taken:
        pass
    taken[0] = 99
    assert bytes(taken[1:]) == BLOBS["weights"][1:]
    assert take(unpack(path), "weights") == BLOBS["weights"]
    assert take(unpack(path), "empty") == b""
    assert take(unpack(small()), "weights") == BLOBS["weights"]


def take(entry, name):
    with entry.taken(name) as taken:
        return bytes(taken)


def test_an_open_entry_stays_the_same_when_another_takes_its_name(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    entry = unpack(path)
    write(path, {"kind": "other"}, {"weights": b"other"})
    assert bytes(entry.blob("weights")) == BLOBS["weights"]
    path.unlink()
    assert take(entry, "weights") == BLOBS["weights"]


def test_files_that_are_no_longer_used_are_closed(tmp_path):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        contents(unpack(path))
        read_header(path)
    assert os.listdir("/proc/self/fd") == before


def test_the_header_can_be_read_without_blobs():
    header = read_header(small()[:1024])
    assert header.about == sorted_deeply(ABOUT)
    assert [blob.name for blob in header.blobs] == sorted(BLOBS)


def test_a_blob_that_is_not_there_is_named():
    with pytest.raises(CorruptArtifact, match=r"has no blob 'code'; it has code/forward\.so, empty, weights"):
        unpack(small()).blob("code")


@pytest.mark.parametrize(
    ("about", "blobs", "message"),
    [
        ({"a": {"b": [(1, 2)]}}, {}, r"holds a tuple at about\.a\.b\[0\]"),
        ({"a": {1: 2}}, {}, r"a key that is no string, 1 in about\.a"),
        ({"a": float("nan")}, {}, r"holds nan at about\.a"),
        ({"a": float("inf")}, {}, r"holds inf at about\.a"),
        ({"a": b"bytes"}, {}, r"holds a bytes at about\.a"),
        ({"a": "\ud800"}, {}, "half of a surrogate pair"),
        ({}, {"../a": b""}, "path to somewhere else"),
        ({}, {"/a": b""}, "names are words"),
        ({}, {"": b""}, "names are words"),
        ({}, {"a" * 201: b""}, "names are words"),
        ({"a": [0] * 1_000_001}, {}, "holds more than 1000000 values"),
    ],
    ids=lambda value: None if isinstance(value, dict) else value,
)
def test_what_could_not_be_read_is_not_packed(about, blobs, message):
    with pytest.raises(ValueError, match=message):
        pack(about, blobs)


def test_nesting_is_bounded_in_both_directions():
    def nested(levels):
        return {} if levels == 0 else {"a": nested(levels - 1)}

    about = nested(62)  # the header itself is a level, and so is the last {}
    assert unpack(pack(about, {})).about == about
    with pytest.raises(ValueError, match="nested too deep"):
        pack(nested(63), {})
    circle = {}
    circle["itself"] = circle
    with pytest.raises(ValueError, match="nested too deep"):
        pack(circle, {})


def test_a_reader_may_set_smaller_limits():
    for limits in [Limits(header_bytes=100), Limits(num_blobs=2), Limits(blob_bytes=511), Limits(header_depth=3)]:
        with pytest.raises(CorruptArtifact):
            unpack(small(), limits=limits)
    assert unpack(small(), limits=Limits(num_blobs=3, blob_bytes=512, header_depth=5, name_length=15))


def test_a_missing_file_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        unpack(tmp_path / "a.fg")


def test_folders_pipes_and_devices_are_no_entries(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in [tmp_path, tmp_path / "pipe", Path("/dev/zero")]:
        with pytest.raises(CorruptArtifact, match="is no file"):
            unpack(path)


def test_a_file_that_cannot_grow_leaves_nothing_behind(tmp_path):
    """The limit is the operating system's, and so is the write that it cuts short."""
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            write(path, {}, {"weights": bytes(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == small()
    assert [p.name for p in tmp_path.iterdir()] == ["a.fg"]


@pytest.mark.parametrize("call", ["write", "fsync", "close", "replace"])
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, call):
    path = tmp_path / "a.fg"
    write(path, ABOUT, BLOBS)
    real_close = os.close

    def full(*args):
        if call == "close":
            real_close(*args)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(OSError, match="No space left"):
            write(path, {"kind": "newer"}, BLOBS)
    assert path.read_bytes() == small()
    assert [p.name for p in tmp_path.iterdir()] == ["a.fg"]


def test_writes_that_are_cut_short_go_on(tmp_path, monkeypatch):
    real_write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real_write(descriptor, data[:7]))
    write(tmp_path / "a.fg", ABOUT, BLOBS)
    assert (tmp_path / "a.fg").read_bytes() == small()
