"""Files that are large for nothing, or are no files: whoever is given one says so, and reads next to nothing."""

import os
import resource
import struct
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from click.testing import CliRunner

import foregrad as fg
from foregrad.cache.format.container import pack, unpack
from foregrad.cache.format.header import MAGIC
from foregrad.cache.store.layer import Hit, Miss
from foregrad.cache.store.seal import PLAIN
from foregrad.cli.main import main
from foregrad.core.errors import CorruptArtifact
from tests.keep.entries import ABOUT, BLOBS, KEY, sparse

#: More than a machine that runs this has memory.
HUGE = 1 << 40
KEY_OF_ENTRY = "ab" * 32


@pytest.fixture(autouse=True)
def _config(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREGRAD_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.delenv("FOREGRAD_CACHE_KEY", raising=False)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1 << 30))


@contextmanager
def at_once():
    """In the block 200 MB are read at most, and as much memory is taken."""
    begin, peak = bytes_read(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert bytes_read() - begin < 200_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak < 200_000


def bytes_read() -> int:
    """By this process, from files of any kind."""
    return int(Path("/proc/self/io").read_text().split()[1])


def run(*args):
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return result.exit_code, result.output


def saved(path):
    compiled = fg.compile(torch.tanh, backend="eager", cache=False)
    compiled(torch.ones(3))
    compiled.save(path, key=KEY)
    return unpack(path)


@pytest.fixture
def odd(tmp_path):
    """Paths of what is no file of ours."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "empty").write_bytes(b"")
    sparse(tmp_path / "large", HUGE, saved(tmp_path / "a.fg").about)
    os.truncate(tmp_path / "a.fg", HUGE)  # longer than its header says
    for name, length in (("header", 2**63), ("just too long", (64 << 20) + 1)):
        (tmp_path / name).write_bytes(struct.pack("<8sIIQQ32s", MAGIC, 1, 0, length, length + 64, bytes(32)))
        os.truncate(tmp_path / name, 128 << 20)
    return tmp_path


ODD = ("pipe", "folder", "zeros", "empty", "large", "a.fg", "header", "just too long")


@pytest.mark.parametrize("name", ODD)
def test_load_refuses_it(odd, name):
    with at_once(), pytest.raises(CorruptArtifact):
        fg.load(odd / name)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", ["show", "verify", "sign"])
def test_commands_fail_in_words(odd, command, name):
    with at_once():
        code, text = run(command, odd / name)
    assert code == (0 if (command, name) == ("show", "large") else 1 if name != "folder" else 2)
    assert text


def test_a_description_that_is_too_long_is_not_parsed(tmp_path):
    about = saved(tmp_path / "a.fg").about
    path = sparse(tmp_path / "b.fg", 1 << 30, about, name="objects.json")
    with at_once(), pytest.raises(CorruptArtifact, match=r"1073741824 bytes in its blob 'objects\.json'"):
        fg.load(path)


@pytest.mark.parametrize("length", [HUGE, 900_000_000])
def test_an_entry_of_a_cache_that_is_longer_than_it_says(tmp_path, length):
    cache = fg.Cache(tmp_path / "cache")
    cache.put(KEY_OF_ENTRY, pack(ABOUT, BLOBS))
    (path,) = (tmp_path / "cache").rglob("*.fg")
    os.truncate(path, length)
    with at_once():
        (damaged,) = cache.verify()
        assert damaged.reason.startswith("too large" if length == HUGE else f"damaged: it has {length - PLAIN.size}")
        assert run("cache", "verify", "--cache", tmp_path / "cache")[0] == 1
        assert isinstance(cache.get(KEY_OF_ENTRY), Miss)
        cache.put(KEY_OF_ENTRY, pack(ABOUT, BLOBS))
        assert isinstance(cache.get(KEY_OF_ENTRY), Hit)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink("/dev/zero", path)])
def test_an_entry_of_a_cache_that_is_no_file(tmp_path, make):
    cache = fg.Cache(tmp_path / "cache")
    cache.put(KEY_OF_ENTRY, b"an entry")
    (path,) = (tmp_path / "cache").rglob("*.fg")
    path.unlink()
    make(path)
    with at_once():
        assert isinstance(cache.get(KEY_OF_ENTRY), Miss)
        cache.verify()
        run("cache", "ls", "--cache", tmp_path / "cache")


@pytest.mark.parametrize(
    "command", [("trust", "add", "name"), ("verify", "{file}", "--key"), ("sign", "{file}", "--key")]
)
def test_a_key_that_never_ends(tmp_path, command):
    saved(tmp_path / "a.fg")
    with at_once():
        code, text = run(*(part.format(file=tmp_path / "a.fg") for part in command), "/dev/zero")
    assert code == 1
    assert "key" in text


def test_signing_copies_a_file_piece_by_piece(tmp_path):
    entry = saved(tmp_path / "a.fg")
    before = {name: bytes(entry.blob(name)) for name in entry.names}
    assert run("sign", tmp_path / "a.fg")[0] == 0
    again = unpack(tmp_path / "a.fg")
    assert {name: bytes(again.blob(name)) for name in again.names} == before
    assert again.about == entry.about
    assert again.header.signature != entry.header.signature
    assert run("verify", tmp_path / "a.fg")[0] == 0


def test_signing_leaves_a_damaged_file_as_it_was(tmp_path):
    saved(tmp_path / "a.fg")
    data = (tmp_path / "a.fg").read_bytes()[:-1] + b"?"
    (tmp_path / "a.fg").write_bytes(data)
    code, text = run("sign", tmp_path / "a.fg")
    assert code == 1
    assert "is damaged in its blob" in text
    assert (tmp_path / "a.fg").read_bytes() == data
    assert list(tmp_path.glob(".*")) == []
